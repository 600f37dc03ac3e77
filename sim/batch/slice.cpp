#include "sim/batch/slice.h"

#include <algorithm>

namespace dbo {
namespace {

/// Requests and tokens of a rank with the position of each request's first token (and, last, of the end).
struct Parent {
  const RankBatch& rank;
  const std::vector<std::int64_t>& starts;

  std::int64_t requests() const { return static_cast<std::int64_t>(rank.requests.size()); }
  std::int64_t tokens() const { return starts.back(); }
  /// Of a padding row: where the real tokens end.
  std::int64_t start(std::int64_t row) const { return starts[static_cast<std::size_t>(std::min(row, requests()))]; }
};

/// The requests that have a token in a non-empty range.
Range requests_of(const Parent& parent, Range tokens) {
  const auto& starts = parent.starts;
  const auto first = std::upper_bound(starts.begin(), starts.end(), tokens.begin) - 1;
  const auto stop = std::lower_bound(first, starts.end(), tokens.end);
  return {first - starts.begin(), stop - starts.begin()};
}

/// Of an ubatch without a real token: none before the first token, the last one behind the last.
Range requests_of_empty(const Parent& parent, std::int64_t at) {
  if (parent.requests() == 0 || at == 0) return {0, 0};
  return {parent.requests() - 1, parent.requests()};
}

/// Positions count from `tokens.begin` and stay inside `tokens`; a request that goes on behind it is shorter by what
/// lies there.
void fill_metadata(const Parent& parent, Range rows, Range tokens, UbatchSlice& slice) {
  slice.block_table_rows = rows;
  slice.query_start_loc.clear();
  slice.seq_lens.clear();
  slice.query_start_loc.reserve(static_cast<std::size_t>(rows.size() + 1));
  slice.seq_lens.reserve(static_cast<std::size_t>(rows.size()));
  for (std::int64_t row = rows.begin; row <= rows.end; ++row) {
    const std::int64_t position = std::clamp(parent.start(row) - tokens.begin, std::int64_t{0}, tokens.size());
    slice.query_start_loc.push_back(static_cast<std::int32_t>(position));
    if (row == rows.end) break;
    std::int64_t seq = 0;
    if (row < parent.requests()) {
      const std::int64_t behind = std::max<std::int64_t>(0, parent.start(row + 1) - tokens.end);
      seq = parent.rank.requests[static_cast<std::size_t>(row)].seq - behind;
    }
    slice.seq_lens.push_back(static_cast<std::int32_t>(seq));
  }
}

Range padded_requests_of(const SliceSpec& spec, std::size_t ubatch, Range requests) {
  if (!spec.row_cuts.empty()) return {spec.row_cuts[ubatch], spec.row_cuts[ubatch + 1]};
  const bool last = ubatch + 2 == spec.cuts.size();
  return {requests.begin, last ? std::max(requests.end, spec.padded_requests) : requests.end};
}

}  // namespace

std::vector<std::int64_t> even_cuts(std::int64_t padded_tokens, int ubatches) {
  std::vector<std::int64_t> cuts;
  for (int i = 0; i < ubatches; ++i) cuts.push_back(padded_tokens / ubatches * i);
  cuts.push_back(padded_tokens);
  return cuts;
}

void slice_rank(const RankBatch& rank, const SliceSpec& spec, std::vector<std::int64_t>& starts,
                std::vector<UbatchSlice>& ubatches) {
  starts.clear();
  starts.push_back(0);
  for (const Request& request : rank.requests) starts.push_back(starts.back() + request.query);
  const Parent parent{rank, starts};
  ubatches.resize(spec.cuts.size() - 1);
  for (std::size_t i = 0; i < ubatches.size(); ++i) {
    UbatchSlice& slice = ubatches[i];
    slice.padded_tokens = {spec.cuts[i], spec.cuts[i + 1]};
    slice.tokens = {std::min(spec.cuts[i], parent.tokens()), std::min(spec.cuts[i + 1], parent.tokens())};
    slice.requests = slice.empty() ? requests_of_empty(parent, slice.tokens.begin) : requests_of(parent, slice.tokens);
    slice.padded_requests = padded_requests_of(spec, i, slice.requests);
    if (spec.padded_metadata)
      fill_metadata(parent, slice.padded_requests, slice.padded_tokens, slice);
    else
      fill_metadata(parent, slice.requests, slice.tokens, slice);
  }
}

}  // namespace dbo
