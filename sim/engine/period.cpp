#include "sim/engine/period.h"

#include <algorithm>
#include <vector>

#include "sim/base/hash.h"
#include "sim/engine/engine.h"
#include "sim/plan/linearise.h"
#include "sim/plan/steady.h"

namespace dbo {
namespace {

struct Snapshot {
  std::vector<std::int64_t> host, state;
  std::int64_t reference = 0;  ///< the latest time in the state
};

/// Whether the run goes on from `b` as it did from `a`, only later. Lanes, events, arrivals and ports must lie equally
/// behind the latest time. A host clock may differ when it is so far behind in both that it cannot matter within a
/// cycle and does not catch up: `span` is more than all the work of the cycle.
bool repeats(const Snapshot& a, const Snapshot& b, std::int64_t span) {
  if (a.state.size() != b.state.size()) return false;
  const std::int64_t shift = b.reference - a.reference;
  for (std::size_t i = 0; i < a.state.size(); ++i) {
    if (b.state[i] - a.state[i] == shift) continue;
    // A lane that is used no more, or was never used, stays where it was.
    if (a.state[i] == b.state[i] && a.reference - a.state[i] > span) continue;
    return false;
  }
  for (std::size_t g = 0; g < a.host.size(); ++g) {
    const std::int64_t moved = b.host[g] - a.host[g];
    if (moved == shift) continue;
    if (moved < shift && a.reference - a.host[g] > span) continue;
    return false;
  }
  return true;
}

/// Which of the MoE iterations are alike: [first, last), counted in marks of the ring's first thread. Before them lie
/// the prologue of schedules whose ubatches are layers apart and the start of the other threads, behind them the
/// epilogue.
struct SteadyMarks {
  std::size_t first = 0, last = 0;
};

/// What the host does between two marks, layers counted from the first mark's.
std::uint64_t segment_hash(const Linear& linear, const LayerMark& mark, std::uint32_t end) {
  std::uint64_t hash = 0;
  const auto add = [&hash](std::uint64_t value) { hash = mix(hash, value); };
  for (std::uint32_t h = mark.host; h < end; ++h) {
    const HostStep& step = linear.host[h];
    add(static_cast<std::uint64_t>(step.verb));
    if (step.verb == Verb::Launch || step.verb == Verb::HostWait) {
      const LinearOp& op = linear.ops[step.index];
      add(op.op);
      add(op.ubatch);
      add(static_cast<std::uint64_t>(op.layer - mark.layer));
    } else if (step.verb == Verb::Record) {
      add(linear.records[step.index].event);
    } else if (step.verb == Verb::Wait) {
      add(linear.waits[step.index].record == kNone ? UINT64_MAX : linear.waits[step.index].event);
    }
  }
  return hash;
}

SteadyMarks steady_marks(const Plan& plan, int class_index) {
  const Linear linear = linearise(plan, class_index);
  const auto block = moe_block(plan, class_index);
  std::vector<LayerMark> marks;
  for (const LayerMark& mark : linear.marks)
    if (block && mark.block == *block) marks.push_back(mark);
  if (marks.size() < 2) return {};
  std::vector<std::uint64_t> hashes;
  for (std::size_t i = 0; i + 1 < marks.size(); ++i)
    hashes.push_back(segment_hash(linear, marks[i], marks[i + 1].host));
  const std::size_t middle = hashes.size() / 2;
  SteadyMarks steady{middle, middle + 1};
  while (steady.first > 0 && hashes[steady.first - 1] == hashes[middle]) --steady.first;
  while (steady.last < hashes.size() && hashes[steady.last] == hashes[middle]) ++steady.last;
  return steady;
}

constexpr int kFirstTry = 32;
constexpr int kLimit = 2048;  ///< iterations; patterns of real costs repeat after one or two

}  // namespace

Period steady_period_time(const Plan& plan, const CostTable& costs) {
  Period period;
  if (plan.classes.empty() || moe_iterations(plan, 0) == 0) return period;
  const int stride = moe_stride(plan, 0);
  // Layers with costs of their own must line up for a state to repeat.
  const int layer_step = costs.repeat_layers();
  for (int iterations = kFirstTry; iterations <= kLimit; iterations *= 8) {
    const Plan longer = with_moe_iterations(plan, iterations);
    SteadyMarks steady{0, SIZE_MAX};
    for (std::size_t c = 0; c < plan.classes.size(); ++c) {
      const SteadyMarks own = steady_marks(longer, static_cast<int>(c));
      steady = {std::max(steady.first, own.first), std::min(steady.last, own.last)};
    }
    std::vector<Snapshot> seen;
    bool found = false;
    EngineOptions options;
    options.on_mark = [&](int mark, const std::vector<std::int64_t>& host, const std::vector<std::int64_t>& state) {
      if (static_cast<std::size_t>(mark) < steady.first) return true;
      if (static_cast<std::size_t>(mark) > steady.last) return false;
      Snapshot now{host, state, state.empty() ? 0 : *std::max_element(state.begin(), state.end())};
      // The host may lead; then it is the latest.
      for (const std::int64_t h : host) now.reference = std::max(now.reference, h);
      for (std::size_t back = 1; back <= seen.size() && !found; ++back) {
        const Snapshot& before = seen[seen.size() - back];
        const int layers = static_cast<int>(back) * stride;
        if (layer_step > 1 && layers % layer_step != 0) continue;
        const std::int64_t cycle = now.reference - before.reference;
        if (!repeats(before, now, 2 * cycle)) continue;
        period = {ceil_div(cycle, layers), cycle, layers, true};
        found = true;
      }
      seen.push_back(std::move(now));
      return !found;
    };
    run_engine(longer, costs, options);
    if (found) return period;
    if (seen.size() >= 8) {
      const Snapshot& middle = seen[seen.size() / 2];
      const std::int64_t cycle = seen.back().reference - middle.reference;
      const int layers = static_cast<int>(seen.size() - 1 - seen.size() / 2) * stride;
      period = {ceil_div(cycle, layers), cycle, layers, false};
    }
  }
  return period;
}

}  // namespace dbo
