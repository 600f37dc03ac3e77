#include "sim/batch/veto.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace dbo {
namespace {

/// The columns of a block table that a request writes.
struct Written {
  const std::int64_t* begin;
  const std::int64_t* end;
  std::int64_t request;
};

/// (block, request), sorted: every block that a request of the rank writes in this step.
std::vector<std::pair<std::int64_t, std::int64_t>> written_blocks(const RankBatch& rank, std::int64_t block_size) {
  std::vector<Written> columns;
  columns.reserve(rank.requests.size());
  for (std::size_t i = 0; i < rank.requests.size(); ++i) {
    const Request& request = rank.requests[i];
    if (request.blocks.empty()) continue;
    const auto listed = static_cast<std::int64_t>(request.blocks.size());
    const std::int64_t first = std::min(request.computed() / block_size, listed);
    const std::int64_t end = std::min((request.seq - 1) / block_size + 1, listed);
    columns.push_back({request.blocks.data() + first, request.blocks.data() + end, static_cast<std::int64_t>(i)});
    // Tables of thousands of requests lie all over memory: their misses must overlap.
    __builtin_prefetch(columns.back().begin);
  }
  std::vector<std::pair<std::int64_t, std::int64_t>> written;
  written.reserve(columns.size());
  for (const Written& part : columns)
    for (const std::int64_t* block = part.begin; block != part.end; ++block) written.emplace_back(*block, part.request);
  std::sort(written.begin(), written.end());
  return written;
}

}  // namespace

std::optional<PrefixConflict> find_prefix_conflict(const RankBatch& rank, std::int64_t block_size,
                                                   std::int64_t decode_query) {
  if (rank.requests.size() < 2) return std::nullopt;
  const auto is_reader = [&](const Request& request) {
    return request.query > decode_query && request.computed() >= block_size && !request.blocks.empty();
  };
  if (std::none_of(rank.requests.begin(), rank.requests.end(), is_reader)) return std::nullopt;
  const auto written = written_blocks(rank, block_size);
  for (std::size_t i = 0; i < rank.requests.size(); ++i) {
    const Request& reader = rank.requests[i];
    if (!is_reader(reader)) continue;
    for (std::int64_t column = 0; column < reader.computed() / block_size; ++column) {
      const std::int64_t block = reader.blocks[static_cast<std::size_t>(column)];
      const auto self = static_cast<std::int64_t>(i);
      auto hit = std::lower_bound(written.begin(), written.end(), std::pair{block, std::int64_t{0}});
      while (hit != written.end() && hit->first == block && hit->second == self) ++hit;
      if (hit != written.end() && hit->first == block)
        return PrefixConflict{.reader = self, .writer = hit->second, .block = block};
    }
  }
  return std::nullopt;
}

}  // namespace dbo
