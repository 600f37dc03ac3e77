#include "runtime/moe_batch.h"

#include <algorithm>

#include "sim/base/error.h"

namespace dbo::runtime {
namespace {

struct Request {
  std::int64_t first_token = 0;  ///< in the rank's whole batch
  std::int32_t query = 0, seq = 0;
};

std::vector<Request> read_requests(const UbatchLoad& load) {
  const std::size_t count = load.query_start_loc.empty() ? 0 : load.query_start_loc.size() - 1;
  if (load.seq_lens.size() != count) {
    throw InputError("a ubatch has " + std::to_string(count) + " requests, but " +
                     std::to_string(load.seq_lens.size()) + " context lengths");
  }
  std::vector<Request> requests;
  for (std::size_t r = 0; r < count; ++r) {
    const std::int32_t begin = load.query_start_loc[r];
    const Request request{load.token_begin + begin, load.query_start_loc[r + 1] - begin, load.seq_lens[r]};
    if (request.query == 0) continue;
    if (request.query < 0 || request.seq < request.query) {
      throw InputError("request " + std::to_string(r) + " of a ubatch has " + std::to_string(request.query) +
                       " new tokens in a context of " + std::to_string(request.seq));
    }
    requests.push_back(request);
  }
  return requests;
}

std::int32_t pages_of(std::int32_t seq) {
  return (seq + kCachePageTokens - 1) / kCachePageTokens;
}

void add_rows(MoeBatch& batch, const Request& request, const RequestPages& pages) {
  const RequestPages::Request& owner = pages.of_token(request.first_token);
  if (request.first_token + request.query > owner.token_end || request.seq > owner.seq) {
    throw InputError("a ubatch's request reaches past its request in the rank's whole batch");
  }
  batch.seq_lens.push_back(request.seq);
  for (int page = 0; page < batch.max_pages; ++page) {
    // Past its end a request names page 0, which every cache has.
    batch.block_table.push_back(page < pages_of(request.seq) ? owner.first_page + page : 0);
  }
  for (std::int32_t i = 0; i < request.query; ++i) {
    const std::int32_t position = request.seq - request.query + i;
    batch.token_of_row.push_back(request.first_token + i);
    batch.positions.push_back(position);
    batch.slot_mapping.push_back(owner.first_page * kCachePageTokens + position);
  }
}

}  // namespace

RequestPages::RequestPages(const std::vector<UbatchLoad>& parts) {
  for (const UbatchLoad& part : parts) {
    for (const auto& request : read_requests(part)) {
      requests_.push_back({request.first_token, request.first_token + request.query, request.seq, pages_});
      pages_ += pages_of(request.seq);
    }
  }
}

const RequestPages::Request& RequestPages::of_token(std::int64_t token) const {
  const auto after = std::upper_bound(requests_.begin(), requests_.end(), token,
                                      [](std::int64_t t, const Request& r) { return t < r.token_begin; });
  if (after == requests_.begin() || token >= std::prev(after)->token_end) {
    throw InputError("token " + std::to_string(token) + " of a ubatch is not in the rank's whole batch");
  }
  return *std::prev(after);
}

MoeBatch make_moe_batch(const UbatchLoad& load, const RequestPages& pages) {
  const std::vector<Request> requests = read_requests(load);
  MoeBatch batch;
  batch.query_tokens = requests.empty() ? 1 : requests.front().query;
  const auto decodes = [&](const Request& r) {
    return r.query == batch.query_tokens && r.query <= kMostDecodeQuery && r.seq > r.query;
  };
  for (const Request& request : requests) batch.max_pages = std::max(batch.max_pages, pages_of(request.seq));
  for (const Request& request : requests) {
    if (!decodes(request)) continue;
    add_rows(batch, request, pages);
    ++batch.decode_requests;
  }
  if (batch.decode_requests == 0) batch.query_tokens = 1;
  batch.query_start = batch.kv_start = {0};
  for (const Request& request : requests) {
    if (decodes(request)) continue;
    add_rows(batch, request, pages);
    ++batch.prefill_requests;
    batch.prefill_tokens += request.query;
    batch.prefill_keys += request.seq;
    batch.prefill_query_blocks += (request.query + 127) / 128;
    batch.query_start.push_back(batch.query_start.back() + request.query);
    batch.kv_start.push_back(batch.kv_start.back() + request.seq);
  }
  const auto real = static_cast<std::int64_t>(batch.positions.size());
  batch.tokens = static_cast<int>(std::max(load.padded, real));
  batch.token_of_row.resize(static_cast<std::size_t>(batch.tokens), -1);
  batch.positions.resize(static_cast<std::size_t>(batch.tokens), 0);
  batch.slot_mapping.resize(static_cast<std::size_t>(batch.tokens), -1);
  return batch;
}

}  // namespace dbo::runtime
