// How fast the engine is, on one core: 61 layers, two ubatches, ten ops each, every rank with costs of its own, beside
// a plain heap-scheduler loop over the same graph. Prints milliseconds of processor time, the best of some runs.
//
// usage: engine_bench [--runs N] [--only NAME]
#include <malloc.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <functional>
#include <queue>
#include <string>
#include <vector>

#include "sim/base/hash.h"
#include "sim/engine/engine.h"
#include "sim/sched/schedule.h"

using namespace dbo;

namespace {

constexpr int kLayers = 61;

/// Where part i of `whole` in equal parts begins.
int part(int whole, int parts, int i) {
  return static_cast<int>(static_cast<std::int64_t>(whole) * i / parts);
}

/// vLLM's high-throughput schedule with three more ops a ubatch and layer: a gate, a permutation and a second GEMM.
Plan ten_op_plan(int ranks, int classes) {
  ScheduleSpec spec;
  spec.shape.name = "ten ops";
  spec.shape.layers = kLayers;
  spec.shape.moe.routed_experts = ranks;
  spec.shape.moe.top_k = 1;
  spec.shape.moe.shared_experts = 1;
  spec.world = {ranks, 8};
  spec.transport = Transport::Ht;
  spec.sm = {SmControl::Limit, 20, 112, 0};
  spec.embed_and_head = false;
  for (int c = 0; c < classes; ++c) {
    Load load;
    for (int u = 0; u < 2; ++u) load.ubatches.push_back({64 * u, 64 * (u + 1), 64, {}, {}});
    spec.loads.push_back(load);
    spec.classes.push_back({{{part(ranks, classes, c), part(ranks, classes, c + 1)}}, c});
  }
  Plan plan = make_plan("vllm-ht", spec);
  const auto add = [&](const char* name) {
    OpDef op;
    op.name = name;
    plan.ops.push_back(op);
    return static_cast<OpId>(plan.ops.size() - 1);
  };
  const OpId gate = add("gate"), permute = add("permute"), second = add("second GEMM");
  for (Block& block : plan.blocks) {
    if (block.name != "moe") continue;
    Program body;
    const auto launch = [&](const Instruction& like, OpId op) {
      body.push_back(like);
      body.back().op.op = op;
    };
    for (const Instruction& i : block.body) {
      const OpKind kind = i.verb == Verb::Launch ? plan.ops[i.op.op].kind : OpKind::Other;
      if (kind == OpKind::MLP) launch(i, permute);
      body.push_back(i);
      if (kind == OpKind::A1) launch(i, gate);
      if (kind == OpKind::MLP) launch(i, second);
    }
    block.body = body;
  }
  return plan;
}

/// Durations around the field's comparison (qkv 30, attention 100, gate 5, dispatch 60, permute 5, GEMMs 40 and 30,
/// combine 90, shared 25 us), a tenth more or less on each group of ranks.
CostTable unequal_costs(const Plan& plan, int groups, bool shared) {
  std::vector<int> group_of_rank(static_cast<std::size_t>(plan.world.ranks));
  for (int g = 0; g < groups; ++g)
    for (std::int64_t r = part(plan.world.ranks, groups, g); r < part(plan.world.ranks, groups, g + 1); ++r)
      group_of_rank[static_cast<std::size_t>(r)] = g;
  CostTable costs(plan, group_of_rank, std::vector<int>(kLayers, 0));
  costs.host_blocks = false;
  if (shared)
    costs.machine = {.sms = 132,
                     .hbm_bytes_per_s = 4'000'000'000'000,
                     .sm_bytes_per_s = 64'000'000'000,
                     .link_bytes_per_s = 350'000'000'000,
                     .nic_bytes_per_s = 48'000'000'000};
  std::uint64_t draw = 0;
  for (int g = 0; g < groups; ++g)
    for (int u = 0; u < 2; ++u)
      for (OpId op = 0; op < plan.ops.size(); ++op) {
        const OpDef& def = plan.ops[op];
        int us = 5;
        if (def.kind == OpKind::A0) us = 30;
        if (def.kind == OpKind::A1) us = 100;
        if (def.kind == OpKind::D) us = 60;
        if (def.kind == OpKind::C) us = 90;
        if (def.kind == OpKind::MLP) us = 40;
        if (def.kind == OpKind::S) us = 25;
        if (def.name == "second GEMM") us = 30;
        OpCost& cost = costs.at(g, 0, u, op);
        cost.time =
            Ns{us * 900 + static_cast<std::int64_t>(mix_below(3, draw++, static_cast<std::uint64_t>(us) * 200))};
        if (!shared) continue;
        const bool comm = is_comm(def.kind);
        cost.demand.sms = comm ? 20 : 112;
        cost.demand.hbm_bytes =
            cost.time.count() * (comm ? 1400 : 1600 + static_cast<std::int64_t>(mix_below(4, draw++, 2000)));
        cost.demand.link_bytes = comm ? cost.time.count() * 160 : 0;
        cost.demand.tiles = comm ? 0 : 448;
        cost.beside = cost.time * (comm ? 12 : 11) / 10;
      }
  return costs;
}

/// The same graph as a list of nodes with counts of what they wait for, run off a heap of ends: what a general
/// discrete-event scheduler does. Comm kernels start when every rank has reached theirs.
class HeapLoop {
 public:
  HeapLoop(const Plan& plan, const CostTable& costs) {
    const Linear linear = linearise(plan, 0);
    const auto ops = static_cast<std::uint32_t>(linear.ops.size());
    const auto ranks = static_cast<std::uint32_t>(costs.groups());
    std::vector<std::vector<std::uint32_t>> after(ops);
    std::vector<int> waits(ops, 0);
    std::vector<std::uint32_t> last_of_lane(plan.lanes.size(), kNone), record_of(linear.records.size(), kNone);
    std::vector<std::vector<std::uint32_t>> pending(plan.lanes.size());
    for (const HostStep& h : linear.host) {
      if (h.verb == Verb::Record) record_of[h.index] = last_of_lane[linear.records[h.index].lane];
      if (h.verb == Verb::Wait && linear.waits[h.index].record != kNone)
        pending[linear.waits[h.index].lane].push_back(record_of[linear.waits[h.index].record]);
      if (h.verb != Verb::Launch) continue;
      const LaneId lane = linear.ops[h.index].lane;
      pending[lane].push_back(last_of_lane[lane]);
      for (const std::uint32_t before : pending[lane])
        if (before != kNone) {
          after[before].push_back(h.index);
          ++waits[h.index];
        }
      pending[lane].clear();
      last_of_lane[lane] = h.index;
    }
    ops_ = ops;
    ranks_ = ranks;
    for (std::uint32_t i = 0; i < ops; ++i) {
      collective_.push_back(is_collective(plan.ops[linear.ops[i].op].kind));
      first_.push_back(static_cast<std::uint32_t>(after_.size()));
      after_.insert(after_.end(), after[i].begin(), after[i].end());
    }
    first_.push_back(static_cast<std::uint32_t>(after_.size()));
    waits_ = waits;
    for (std::uint32_t r = 0; r < ranks; ++r)
      for (std::uint32_t i = 0; i < ops; ++i)
        time_.push_back(costs.at(static_cast<int>(r), 0, linear.ops[i].ubatch, linear.ops[i].op).time.count());
  }

  std::int64_t run() {
    std::vector<int> waits;
    for (std::uint32_t r = 0; r < ranks_; ++r) waits.insert(waits.end(), waits_.begin(), waits_.end());
    std::vector<std::uint32_t> arrived(ops_, 0);
    std::priority_queue<std::pair<std::int64_t, std::uint32_t>, std::vector<std::pair<std::int64_t, std::uint32_t>>,
                        std::greater<>>
        heap;
    const auto ready = [&](std::uint32_t rank, std::uint32_t op, std::int64_t now) {
      if (!collective_[op]) return heap.emplace(now + time_[rank * ops_ + op], rank * ops_ + op);
      if (++arrived[op] < ranks_) return;
      for (std::uint32_t r = 0; r < ranks_; ++r) heap.emplace(now + time_[r * ops_ + op], r * ops_ + op);
    };
    for (std::uint32_t r = 0; r < ranks_; ++r)
      for (std::uint32_t i = 0; i < ops_; ++i)
        if (waits_[i] == 0) ready(r, i, 0);
    std::int64_t end = 0;
    while (!heap.empty()) {
      const auto [now, node] = heap.top();
      heap.pop();
      end = now;
      const std::uint32_t rank = node / ops_, op = node % ops_;
      for (std::uint32_t a = first_[op]; a < first_[op + 1]; ++a)
        if (--waits[rank * ops_ + after_[a]] == 0) ready(rank, after_[a], now);
    }
    return end;
  }

 private:
  std::uint32_t ops_ = 0, ranks_ = 0;
  std::vector<char> collective_;
  std::vector<std::uint32_t> first_, after_;
  std::vector<int> waits_;
  std::vector<std::int64_t> time_;
};

struct Result {
  double ms = 0;
  std::int64_t step_ns = 0;
};

/// Time of this thread on its core: what other jobs of the machine take does not count.
double thread_ms() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

Result best_of(int runs, const std::function<std::int64_t()>& work) {
  Result best;
  for (int i = 0; i < runs; ++i) {
    const double begin = thread_ms();
    best.step_ns = work();
    const double ms = thread_ms() - begin;
    if (i == 0 || ms < best.ms) best.ms = ms;
  }
  return best;
}

double peak_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

struct Case {
  const char* name;
  int ranks, groups, classes;
  bool shared, extrapolate;
  double aim_ms;  ///< 0: none
};

void print(const char* name, double ops, const Result& result, double aim_ms) {
  std::printf("%-46s %10.0f %10.3f %8.1f %12.3f", name, ops, result.ms, result.ms * 1e6 / ops,
              static_cast<double>(result.step_ns) / 1e6);
  if (aim_ms > 0) std::printf("   aim %g ms", aim_ms);
  std::printf("   peak %.0f MiB\n", peak_mib());
}

}  // namespace

int main(int argc, char** argv) {
  // As in a sweep, memory of one run serves the next: fresh pages cost more than small cases take.
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  int runs = 5;
  std::string only;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--runs") == 0) runs = std::max(1, std::atoi(argv[i + 1]));
    if (std::strcmp(argv[i], "--only") == 0) only = argv[i + 1];
  }
  const Case cases[] = {
      {"256 unequal ranks, nothing shared", 256, 256, 1, false, true, 4},
      {"  every layer simulated", 256, 256, 1, false, false, 4},
      {"  a class for each rank", 256, 256, 256, false, false, 0},
      {"256 unequal ranks, contention", 256, 256, 1, true, true, 30},
      {"  every layer simulated", 256, 256, 1, true, false, 30},
      {"64 ranks in 64 load classes, contention", 64, 64, 64, true, false, 0},
      {"100000 ranks in 64 load classes, contention", 100000, 64, 64, true, false, 0},
      {"4096 unequal ranks, nothing shared", 4096, 4096, 1, false, false, 1000},
      {"4096 unequal ranks, contention", 4096, 4096, 1, true, false, 1000},
  };
  std::printf("%-46s %10s %10s %8s %12s\n", "case", "ops", "ms", "ns/op", "step (ms)");
  for (const Case& c : cases) {
    if (!only.empty() && std::string(c.name).find(only) == std::string::npos) continue;
    const Plan plan = ten_op_plan(c.ranks, c.classes);
    const CostTable costs = unequal_costs(plan, c.groups, c.shared);
    EngineOptions options;
    options.extrapolate = c.extrapolate;
    std::int64_t skipped = 0;
    const Result result = best_of(runs, [&] {
      const EngineResult run = run_engine(plan, costs, options);
      skipped = run.repeat ? run.repeat->skipped : 0;
      return run.step();
    });
    print(c.name, 1220.0 * c.groups, result, c.aim_ms);
    if (skipped > 0) std::printf("  (%lld of 61 layers stepped over)\n", static_cast<long long>(skipped));
  }
  if (only.empty() || only == "heap") {
    const Plan plan = ten_op_plan(256, 1);
    const CostTable costs = unequal_costs(plan, 256, false);
    HeapLoop heap(plan, costs);
    print("plain heap scheduler, 256 ranks, graph built", 1220.0 * 256, best_of(runs, [&] { return heap.run(); }), 0);
  }
  return 0;
}
