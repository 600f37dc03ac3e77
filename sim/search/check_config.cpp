#include "sim/search/check_config.h"

#include <algorithm>
#include <map>
#include <utility>

#include "sim/plan/linearise.h"
#include "sim/search/predict.h"

namespace dbo {
namespace {

/// Whether, in some layer, ubatch `reader` attends before ubatch `writer` has written its part of the KV cache.
bool reads_first(const Plan& plan, int reader, int writer) {
  const Linear linear = linearise(plan, 0);
  std::map<std::int32_t, std::uint32_t> read;  // layer -> launch of the reader's attention
  for (std::uint32_t i = 0; i < linear.ops.size(); ++i)
    if (plan.ops[linear.ops[i].op].kind == OpKind::A1 && linear.ops[i].ubatch == reader) read[linear.ops[i].layer] = i;
  for (std::uint32_t i = 0; i < linear.ops.size(); ++i) {
    const LinearOp& op = linear.ops[i];
    if (plan.ops[op.op].kind != OpKind::A0 || op.ubatch != writer) continue;
    const auto found = read.find(op.layer);
    if (found != read.end() && found->second < i) return true;
  }
  return false;
}

struct SharedBlock {
  std::int64_t reader = 0, writer = 0, block = 0;
  int reader_ubatch = 0, writer_ubatch = 0;
};

/// Ubatches that work on any of the rank's tokens [begin, end).
std::vector<int> ubatches_of_tokens(const RankSplit& split, std::int64_t begin, std::int64_t end) {
  std::vector<int> ubatches;
  for (std::size_t u = 0; u < split.ubatches.size(); ++u) {
    const Range& tokens = split.ubatches[u].tokens;
    if (std::max(tokens.begin, begin) < std::min(tokens.end, end)) ubatches.push_back(static_cast<int>(u));
  }
  return ubatches;
}

struct BlockWriter {
  std::int64_t request = 0;
  int ubatch = 0;
};

/// Every block the rank's requests write in this step, with the ubatches that hold the tokens of it.
std::multimap<std::int64_t, BlockWriter> block_writers(const RankBatch& rank, std::int64_t block_size,
                                                       const RankSplit& split) {
  std::multimap<std::int64_t, BlockWriter> writers;
  std::int64_t first_token = 0;
  for (std::size_t r = 0; r < rank.requests.size(); ++r) {
    const Request& request = rank.requests[r];
    const auto listed = static_cast<std::int64_t>(request.blocks.size());
    const std::int64_t end = std::min((request.seq - 1) / block_size + 1, listed);
    for (std::int64_t column = request.computed() / block_size; column < end; ++column) {
      // Positions in the request become tokens of the batch.
      const std::int64_t shift = first_token - request.computed();
      const std::int64_t from = std::max(column * block_size, request.computed()) + shift;
      const std::int64_t to = std::min((column + 1) * block_size, request.seq) + shift;
      for (const int u : ubatches_of_tokens(split, from, to))
        writers.emplace(request.blocks[static_cast<std::size_t>(column)], BlockWriter{static_cast<std::int64_t>(r), u});
    }
    first_token += request.query;
  }
  return writers;
}

/// Pairs of ubatches in which one reads, as already computed, a block that the other writes: the first pair of requests
/// of each.
std::vector<SharedBlock> shared_blocks(const RankBatch& rank, std::int64_t block_size, const RankSplit& split) {
  const auto writers = block_writers(rank, block_size, split);
  std::map<std::pair<int, int>, SharedBlock> pairs;
  std::int64_t first_token = 0;
  for (std::size_t r = 0; r < rank.requests.size(); ++r) {
    const Request& request = rank.requests[r];
    const auto listed = static_cast<std::int64_t>(request.blocks.size());
    const std::vector<int> readers = ubatches_of_tokens(split, first_token, first_token + request.query);
    first_token += request.query;
    for (std::int64_t column = 0; column < std::min(request.computed() / block_size, listed); ++column) {
      const std::int64_t block = request.blocks[static_cast<std::size_t>(column)];
      const auto [begin, end] = writers.equal_range(block);
      for (auto writer = begin; writer != end; ++writer) {
        if (writer->second.request == static_cast<std::int64_t>(r)) continue;
        for (const int reader : readers)
          if (reader != writer->second.ubatch)
            pairs.try_emplace({reader, writer->second.ubatch},
                              SharedBlock{static_cast<std::int64_t>(r), writer->second.request, block, reader,
                                          writer->second.ubatch});
      }
    }
  }
  std::vector<SharedBlock> out;
  for (const auto& [ubatches, shared] : pairs) out.push_back(shared);
  return out;
}

void check_prefixes(const StepBatch& step, const Decision& decision, const Plan& plan, PlanCheck& check) {
  for (std::size_t rank = 0; rank < step.ranks.size(); ++rank) {
    for (const SharedBlock& s : shared_blocks(step.ranks[rank], step.block_size, decision.ranks[rank])) {
      if (!reads_first(plan, s.reader_ubatch, s.writer_ubatch)) continue;
      check.findings.push_back(
          {"F9", true,
           "request " + std::to_string(s.reader) + " (ubatch " + std::to_string(s.reader_ubatch) + ") reads block " +
               std::to_string(s.block) + ", which request " + std::to_string(s.writer) + " (ubatch " +
               std::to_string(s.writer_ubatch) +
               ") writes in the same step: its attention comes first, and nothing vetoes the split",
           static_cast<int>(rank), 1});
    }
  }
}

}  // namespace

PlanCheck check_config(const Config& config) {
  const DecideSettings settings = decide_settings(config);
  PlanCheck all;
  for (const StepBatch& step : config.workload.steps) {
    const Decision decision = decide(step, settings);
    const Plan plan = make_step_plan(config, decision, false);
    PlanCheck check = check_plan(plan);
    if (decision.split) check_prefixes(step, decision, plan, check);
    all.ops = std::max(all.ops, check.ops);
    all.programs = std::max(all.programs, check.programs);
    for (PlanFinding& finding : check.findings) {
      const auto known = std::find_if(all.findings.begin(), all.findings.end(), [&](const PlanFinding& f) {
        return f.code == finding.code && f.text == finding.text;
      });
      if (known == all.findings.end()) all.findings.push_back(std::move(finding));
    }
  }
  std::stable_sort(all.findings.begin(), all.findings.end(),
                   [](const PlanFinding& a, const PlanFinding& b) { return a.stops && !b.stops; });
  return all;
}

}  // namespace dbo
