#include "sim/batch/loads.h"

#include <algorithm>
#include <map>

#include "sim/base/hash.h"

namespace dbo {
namespace {

UbatchWork work_of(const UbatchSlice& slice) {
  return {.token_begin = slice.tokens.begin,
          .token_end = slice.tokens.end,
          .padded = slice.padded_tokens.size(),
          .query_start_loc = slice.query_start_loc,
          .seq_lens = slice.seq_lens};
}

bool same_work(const UbatchWork& work, const UbatchSlice& slice) {
  return work.token_begin == slice.tokens.begin && work.token_end == slice.tokens.end &&
         work.padded == slice.padded_tokens.size() && work.query_start_loc == slice.query_start_loc &&
         work.seq_lens == slice.seq_lens;
}

bool same_load(const std::vector<UbatchWork>& load, const RankSplit& rank) {
  return std::equal(load.begin(), load.end(), rank.ubatches.begin(), rank.ubatches.end(), same_work);
}

/// Equal loads have equal keys; unequal ones may, and are compared then.
std::uint64_t key_of(const RankSplit& rank) {
  std::uint64_t key = 0;
  const auto add = [&](std::int64_t value) { key = mix(key, static_cast<std::uint64_t>(value)); };
  for (const UbatchSlice& slice : rank.ubatches) {
    add(slice.tokens.begin);
    add(slice.tokens.end);
    add(slice.padded_tokens.size());
    for (const std::int32_t position : slice.query_start_loc) add(position);
    for (const std::int32_t seq : slice.seq_lens) add(seq);
  }
  return key;
}

}  // namespace

StepLoads make_loads(const Decision& decision) {
  StepLoads out;
  std::map<std::uint64_t, std::vector<int>> by_key;
  out.load_of_rank.reserve(decision.ranks.size());
  const RankSplit* before = nullptr;
  for (const RankSplit& rank : decision.ranks) {
    if (before != nullptr && rank.ubatches.shares(before->ubatches)) {
      out.load_of_rank.push_back(out.load_of_rank.back());
      continue;
    }
    before = &rank;
    std::vector<int>& candidates = by_key[key_of(rank)];
    const auto found = std::find_if(candidates.begin(), candidates.end(), [&](int load) {
      return same_load(out.loads[static_cast<std::size_t>(load)], rank);
    });
    if (found != candidates.end()) {
      out.load_of_rank.push_back(*found);
      continue;
    }
    const int load = static_cast<int>(out.loads.size());
    std::vector<UbatchWork>& works = out.loads.emplace_back();
    for (const UbatchSlice& slice : rank.ubatches) works.push_back(work_of(slice));
    candidates.push_back(load);
    out.load_of_rank.push_back(load);
  }
  return out;
}

std::vector<std::pair<int, int>> StepLoads::ranks_of(int load) const {
  std::vector<std::pair<int, int>> ranges;
  for (int rank = 0; rank < static_cast<int>(load_of_rank.size()); ++rank) {
    if (load_of_rank[static_cast<std::size_t>(rank)] != load) continue;
    if (!ranges.empty() && ranges.back().second == rank)
      ++ranges.back().second;
    else
      ranges.emplace_back(rank, rank + 1);
  }
  return ranges;
}

}  // namespace dbo
