// The checker against an oracle that knows nothing of clocks: all paths between queue items, all pairs of accesses.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "sim/plan/linearise.h"
#include "sim/plan/plan_check.h"
#include "tests/fakes/random_orders.h"
#include "tests/fakes/small_plans.h"

using namespace dbo;
using fakes::Draw;
using fakes::small_spec;

namespace {

/// Which ops are over before which begin: the transitive closure over everything a lane or the host waits for.
class Paths {
 public:
  Paths(const Plan& plan, const Linear& linear) : n_(linear.ops.size()), reach_(n_ * n_, false) {
    // Front of a lane, record or the host: every op that is over there.
    using Set = std::set<std::uint32_t>;
    std::vector<Set> lane(plan.lanes.size()), record(linear.records.size());
    Set host;
    for (const HostStep& step : linear.host) {
      if (step.verb == Verb::Record) {
        record[step.index] = lane[linear.records[step.index].lane];
        record[step.index].insert(host.begin(), host.end());
      } else if (step.verb == Verb::Wait && linear.waits[step.index].record != kNone) {
        const Set& seen = record[linear.waits[step.index].record];
        lane[linear.waits[step.index].lane].insert(seen.begin(), seen.end());
      } else if (step.verb == Verb::HostWait && !step.notify) {
        for (std::uint32_t a = 0; a < n_; ++a)
          if (before(a, step.index)) host.insert(a);
        host.insert(step.index);
      } else if (step.verb == Verb::Launch) {
        Set& front = lane[linear.ops[step.index].lane];
        front.insert(host.begin(), host.end());
        for (const std::uint32_t a : front) reach_[a * n_ + step.index] = true;
        front.insert(step.index);
      }
    }
  }
  bool before(std::uint32_t a, std::uint32_t b) const { return reach_[a * n_ + b]; }

 private:
  std::size_t n_;
  std::vector<bool> reach_;
};

struct DataNeed {
  OpKind from, to;
  int layers;
};

/// What the ops of a layer need, from the definitions of dispatch and combine.
std::vector<DataNeed> needs() {
  using enum OpKind;
  return {{A0, A1, 0},    {A1, D, 0},        {D, MLP, 0},      {MLP, C, 0},    {C, A0, 1},
          {A1, DSend, 0}, {DRecv, MLP, 0},   {MLP, CSend, 0},  {CRecv, A0, 1}, {A1, S, 0},
          {S, A0, 1},     {DSend, DRecv, 0}, {CSend, CRecv, 0}};
}

/// Whether running the plan could go wrong in its data: an op without what it needs, two accesses to a slot that
/// nothing orders, a value that was overwritten, more calls than buffers.
bool is_broken(const Plan& plan, const Linear& linear) {
  if (!linear.problems.empty()) return true;
  const Paths paths(plan, linear);
  const auto n = static_cast<std::uint32_t>(linear.ops.size());
  const auto kind = [&](std::uint32_t i) { return plan.ops[linear.ops[i].op].kind; };
  std::map<std::tuple<OpKind, int, int>, std::uint32_t> launched;
  for (std::uint32_t i = 0; i < n; ++i) launched.try_emplace({kind(i), linear.ops[i].ubatch, linear.ops[i].layer}, i);
  for (std::uint32_t i = 0; i < n; ++i) {
    if (is_send(kind(i)) && linear.ops[i].pair == kNone) return true;
    for (const DataNeed& need : needs()) {
      if (need.to != kind(i) || linear.ops[i].layer < need.layers || !plan.find_op(op_name(need.from))) continue;
      const auto from = launched.find({need.from, linear.ops[i].ubatch, linear.ops[i].layer - need.layers});
      if (from == launched.end() || !paths.before(from->second, i)) return true;
    }
  }
  std::vector<std::uint32_t> latest_call(16, 0), call(n);
  for (std::uint32_t i = 0; i < n; ++i) {
    if (linear.ops[i].call != kNone) latest_call[linear.ops[i].ubatch] = linear.ops[i].call;
    call[i] = latest_call[linear.ops[i].ubatch];
  }
  for (BufferId b = 0; b < plan.buffers.size(); ++b) {
    const Buffer& buffer = plan.buffers[b];
    const auto has = [&](const std::vector<BufferId>& list) { return std::count(list.begin(), list.end(), b) > 0; };
    const auto slot = [&](std::uint32_t i) {
      return (buffer.by == SlotBy::Ubatch ? linear.ops[i].ubatch : call[i]) % static_cast<std::uint32_t>(buffer.slots);
    };
    for (std::uint32_t i = 0; i < n; ++i) {
      const OpDef& late = plan.ops[linear.ops[i].op];
      if (!has(late.reads) && !has(late.writes)) continue;
      std::uint32_t writer = kNone;
      for (std::uint32_t j = 0; j < i; ++j) {
        const OpDef& early = plan.ops[linear.ops[j].op];
        if (slot(j) != slot(i) || (!has(early.writes) && !(has(early.reads) && has(late.writes)))) continue;
        if (!paths.before(j, i)) return true;
        if (has(early.writes)) writer = j;
      }
      if (!has(late.reads) || writer == kNone) continue;
      if (is_recv(kind(i)) && buffer.by == SlotBy::Call ? linear.ops[writer].call != linear.ops[i].call
                                                        : linear.ops[writer].ubatch != linear.ops[i].ubatch)
        return true;
    }
  }
  return false;
}

void check_against_oracle(const Plan& plan, int& broken, int& sound) {
  const Linear linear = linearise(plan, 0);
  const bool expected = is_broken(plan, linear);
  const PlanCheck check = check_plan(plan);
  std::string text;
  for (const PlanFinding& f : check.findings) text += f.code + ": " + f.text + "\n";
  CHECK_MESSAGE(check.stops() == expected, text);
  ++(expected ? broken : sound);
}

/// One change that a slip of the hand could make.
void mutate(Plan& plan, Draw& draw) {
  Block& block = plan.blocks[static_cast<std::size_t>(draw.below(static_cast<int>(plan.blocks.size())))];
  Program& body = block.body;
  if (body.empty()) return;
  const auto size = static_cast<int>(body.size());
  const auto at = static_cast<std::size_t>(draw.below(size));
  switch (draw.below(6)) {
    case 0:
      body.erase(body.begin() + static_cast<std::ptrdiff_t>(at));
      break;
    case 1:
      std::swap(body[at], body[(at + 1) % body.size()]);
      break;
    case 2: {
      // The same kernel twice in a row is waste, not a fault: what to find there is no question of order.
      if (body[at].verb == Verb::Launch) break;
      const Instruction copy = body[at];
      body.insert(body.begin() + draw.below(size), copy);
      break;
    }
    case 3:
      if (!plan.buffers.empty())
        plan.buffers[static_cast<std::size_t>(draw.below(static_cast<int>(plan.buffers.size())))].slots = 1;
      break;
    case 4:
      // A wait or record on the wrong lane, or of the wrong event.
      for (std::size_t i = 0; i < body.size(); ++i) {
        Instruction& instruction = body[(at + i) % body.size()];
        if (instruction.verb != Verb::Wait && instruction.verb != Verb::Record) continue;
        if (draw.below(2) == 0)
          instruction.lane = static_cast<LaneId>(1 - instruction.lane);
        else
          instruction.event = static_cast<EventId>(draw.below(static_cast<int>(plan.events.size())));
        break;
      }
      break;
    case 5:
      for (std::size_t i = 0; i < body.size(); ++i) {
        if (body[(at + i) % body.size()].verb != Verb::Wait) continue;
        body.erase(body.begin() + static_cast<std::ptrdiff_t>((at + i) % body.size()));
        break;
      }
      break;
  }
}

}  // namespace

TEST_CASE("plan_check: finds a fault exactly where the oracle does, in built-in schedules with one or two slips") {
  int broken = 0, sound = 0;
  for (const ScheduleName& schedule : schedule_names()) {
    if (schedule.name == kSequentialSchedule) continue;
    for (std::uint64_t seed = 0; seed < 150; ++seed) {
      Draw draw(seed);
      ScheduleSpec spec = small_spec(3, 2, schedule.default_transport);
      spec.sm = {SmControl::Limit, 20, 112, 0};
      Plan plan = make_plan(schedule.name, spec);
      if (seed > 0) mutate(plan, draw);
      if (seed % 3 == 0 && seed > 0) mutate(plan, draw);
      CAPTURE(schedule.name);
      CAPTURE(seed);
      check_against_oracle(plan, broken, sound);
    }
  }
  CHECK(broken > 200);
  CHECK(sound > 100);
}

TEST_CASE("plan_check: finds a fault exactly where the oracle does, in random orders with a slip") {
  int broken = 0, sound = 0;
  for (std::uint64_t seed = 0; seed < 600; ++seed) {
    Draw draw(seed ^ 0xabcd);
    const bool low_latency = seed % 2 == 0;
    const fakes::RandomOrder order = fakes::random_order(seed, low_latency, 2);
    ScheduleSpec spec = small_spec(3, order.ubatches, low_latency ? Transport::LsaLl : Transport::LsaHt);
    spec.sm = {SmControl::Limit, 20, 112, 0};
    Plan plan = make_plan(order.notation, spec);
    if (seed % 4 != 0) mutate(plan, draw);
    CAPTURE(order.notation.order);
    CAPTURE(seed);
    check_against_oracle(plan, broken, sound);
  }
  CHECK(broken > 100);
  CHECK(sound > 100);
}
