// Plans made by hand and at random for the runtime's tests.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "sim/base/error.h"
#include "sim/base/hash.h"
#include "sim/plan/linearise.h"
#include "sim/plan/plan.h"

namespace dbo::test {

/// Two lanes, the ops of a high-throughput and of a low-latency schedule, three events, no program yet.
inline Plan two_lane_plan() {
  Plan plan;
  plan.lanes = {"compute", "comm"};
  plan.events = {"compute_done", "comm_done", "previous"};
  plan.shape.layers = 4;
  const auto add = [&](OpKind kind, LaneId lane) {
    plan.ops.push_back({std::string(op_name(kind)), kind, lane, SmPool::Compute, {}, {}, {}});
  };
  for (const OpKind kind : {OpKind::A0, OpKind::A1, OpKind::MLP, OpKind::S}) add(kind, kComputeLane);
  for (const OpKind kind : {OpKind::D, OpKind::C, OpKind::CCopy}) add(kind, kCommLane);
  for (const OpKind kind : {OpKind::DSend, OpKind::DRecv, OpKind::CSend, OpKind::CRecv}) add(kind, kComputeLane);
  const auto pair = [&](const char* a, const char* b) { plan.ops[*plan.find_op(a)].pairs = *plan.find_op(b); };
  pair("D", "D");
  pair("C", "C");
  pair("D.send", "D.recv");
  pair("C.send", "C.recv");
  return plan;
}

inline Instruction launch(const Plan& plan, std::string_view op, int ubatch = -1, int layer_offset = 0) {
  Instruction instruction;
  instruction.verb = Verb::Launch;
  DBO_CHECK(plan.find_op(op).has_value(), "the plan has no such op");
  instruction.op = {*plan.find_op(op), static_cast<std::int16_t>(ubatch), layer_offset};
  return instruction;
}

inline Instruction hook(const Plan& plan, std::string_view op) {
  Instruction instruction;
  instruction.verb = Verb::Hook;
  instruction.hook = {launch(plan, op).op};
  return instruction;
}

inline Instruction event(Verb verb, EventId event, LaneId lane) {
  Instruction instruction;
  instruction.verb = verb;
  instruction.event = event;
  instruction.lane = lane;
  return instruction;
}

inline Instruction host_wait(const Plan& plan, std::string_view op, bool notify) {
  Instruction instruction = launch(plan, op);
  instruction.verb = Verb::HostWait;
  instruction.notify = notify;
  return instruction;
}

inline Instruction simple(Verb verb) {
  Instruction instruction;
  instruction.verb = verb;
  return instruction;
}

inline Instruction repeat(int count, BlockId block, int stride = 1) {
  Instruction instruction;
  instruction.verb = Verb::Repeat;
  instruction.count = count;
  instruction.block = block;
  instruction.stride = stride;
  return instruction;
}

/// One class: `ranks` ranks that run all threads of the plan in their order.
inline void single_class(Plan& plan, int ranks = 1) {
  plan.world = {ranks, ranks};
  RankClass all;
  all.ranks = {{0, ranks}};
  Load load;
  int ubatches = 1;
  for (std::size_t i = 0; i < plan.threads.size(); ++i) {
    all.threads.push_back(static_cast<int>(i));
    ubatches = std::max(ubatches, plan.threads[i].ubatch + 1);
  }
  load.ubatches.resize(static_cast<std::size_t>(ubatches));
  plan.classes = {all};
  plan.loads = {load};
}

/// Numbers in order from one seed.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : seed_(seed) {}
  int below(int bound) { return static_cast<int>(mix_below(seed_, counter_++, static_cast<std::uint64_t>(bound))); }
  bool chance(int percent) { return below(100) < percent; }

 private:
  std::uint64_t seed_, counter_ = 0;
};

/// A program of sound but arbitrary order: `threads` threads with the same yields, each layer a few segments of random
/// launches, records and waits; hooks hand receives to the next thread the way low-latency schedules do. Every launch
/// of dispatch and combine is the only one of its layer and ubatch.
inline Plan random_plan(std::uint64_t seed, int threads) {
  Plan plan = two_lane_plan();
  Draw draw(seed);
  const int segments = 1 + draw.below(4);
  const int dispatch = draw.below(segments), combine = draw.below(segments);
  const bool low_latency = draw.chance(50);
  Program body;
  const auto random_work = [&] {
    static const std::vector<std::string> compute{"A0", "A1", "MLP", "S"};
    for (int n = draw.below(4); n > 0; --n) {
      const auto number = static_cast<EventId>(draw.below(3));
      const auto lane = static_cast<LaneId>(draw.below(2));
      switch (draw.below(4)) {
        case 0:
        case 1:
          body.push_back(launch(plan, compute[static_cast<std::size_t>(draw.below(4))], -1, -draw.below(3)));
          break;
        case 2:
          body.push_back(event(Verb::Record, number, lane));
          break;
        case 3:
          body.push_back(event(Verb::Wait, number, lane));
          break;
      }
    }
  };
  for (int segment = 0; segment < segments; ++segment) {
    random_work();
    // One call a segment; the next thread has run its hook point before this one registers again.
    if (low_latency) body.push_back(simple(Verb::RunHook));
    const std::string call = segment == dispatch ? "D" : segment == combine ? "C" : "";
    if (!call.empty() && low_latency) {
      body.push_back(launch(plan, call + ".send"));
      random_work();
      body.push_back(hook(plan, call + ".recv"));
    } else if (!call.empty()) {
      body.push_back(launch(plan, call));
      if (draw.chance(30)) body.push_back(host_wait(plan, call, draw.chance(50)));
    }
    random_work();
    body.push_back(simple(Verb::Yield));
  }
  plan.blocks = {{"body", body}};
  const int layers = 1 + draw.below(4);
  for (int t = 0; t < threads; ++t) {
    plan.threads.push_back({t, {repeat(layers, 0), launch(plan, "S"), simple(Verb::Exit)}});
  }
  single_class(plan);
  return plan;
}

/// The same with one change that may break it: an instruction of one thread's own copy of the block dropped, doubled or
/// put somewhere else.
inline Plan mutated_plan(std::uint64_t seed, int threads) {
  Plan plan = random_plan(seed, threads);
  Draw draw(seed ^ 0x5eed);
  Block copy{"mutated", plan.blocks[0].body};
  Program& body = copy.body;
  const auto at = [&] { return static_cast<std::ptrdiff_t>(draw.below(static_cast<int>(body.size()))); };
  const Instruction taken = body[static_cast<std::size_t>(at())];
  switch (draw.below(3)) {
    case 0:
      body.erase(body.begin() + at());
      break;
    case 1:
      body.insert(body.begin() + at(), taken);
      break;
    case 2:
      body.erase(body.begin() + at());
      body.insert(body.begin() + (body.empty() ? 0 : at()), taken);
      break;
  }
  plan.blocks.push_back(copy);
  plan.threads[static_cast<std::size_t>(draw.below(threads))].body[0].block = 1;
  return plan;
}

}  // namespace dbo::test
