// Deciding one step, without reading or printing JSON.
#include <benchmark/benchmark.h>

#include "sim/base/hash.h"
#include "sim/batch/decide.h"
#include "sim/batch/loads.h"

using namespace dbo;

namespace {

/// `blocks`: block tables with a shared system prompt of 8 blocks, and a chunk of a long prompt on every rank, so that
/// the prefix rule has readers to check.
StepBatch make_step(int ranks, int requests, bool blocks) {
  StepBatch step;
  for (int r = 0; r < ranks; ++r) {
    RankBatch& rank = step.ranks.emplace_back();
    for (int i = 0; i < requests; ++i) {
      const auto counter = static_cast<std::uint64_t>(r * requests + i);
      Request request{.query = 1, .seq = 1024 + static_cast<std::int64_t>(mix_below(7, counter, 4096)), .blocks = {}};
      if (blocks && i == 0) request.query = 600;
      if (blocks)
        for (std::int64_t b = 0; b * step.block_size < request.seq; ++b)
          request.blocks.push_back(b < 8 ? b : static_cast<std::int64_t>(counter) * 1000 + b);
      rank.requests.edit().push_back(std::move(request));
    }
  }
  return step;
}

DecideSettings settings_of(Coordination coordination, bool graph) {
  DecideSettings settings;
  settings.coordination = coordination;
  if (graph) {
    settings.execution = Execution::Graph;
    settings.graph_sizes = std::vector<std::int64_t>{128, 256, 512};
  }
  return settings;
}

void run(benchmark::State& state, Coordination coordination, bool graph, bool blocks) {
  const StepBatch step = make_step(256, 256, blocks);
  const DecideSettings settings = settings_of(coordination, graph);
  // Memory is reused from step to step, as a server does.
  Decision decision;
  for (auto _ : state) {
    decide(step, settings, decision);
    if (!decision.split) state.SkipWithError("not split");
    benchmark::DoNotOptimize(decision.ranks.data());
  }
}

void decide_v1(benchmark::State& state) {
  run(state, Coordination::V1, false, false);
}
void decide_v1_graph(benchmark::State& state) {
  run(state, Coordination::V1, true, false);
}
void decide_v1_prefixes(benchmark::State& state) {
  run(state, Coordination::V1, false, true);
}
void decide_mrv2_graph(benchmark::State& state) {
  run(state, Coordination::Mrv2, true, false);
}
void decide_sglang(benchmark::State& state) {
  run(state, Coordination::Sglang, false, false);
}
void find_loads(benchmark::State& state) {
  const Decision decision = decide(make_step(256, 256, false), settings_of(Coordination::V1, false));
  for (auto _ : state) benchmark::DoNotOptimize(make_loads(decision));
}

BENCHMARK(decide_v1)->Unit(benchmark::kMillisecond);
BENCHMARK(decide_v1_graph)->Unit(benchmark::kMillisecond);
BENCHMARK(decide_v1_prefixes)->Unit(benchmark::kMillisecond);
BENCHMARK(decide_mrv2_graph)->Unit(benchmark::kMillisecond);
BENCHMARK(decide_sglang)->Unit(benchmark::kMillisecond);
BENCHMARK(find_loads)->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
