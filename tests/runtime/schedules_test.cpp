// Every built-in schedule on the virtual device: real threads, several ranks, random durations.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/arena.h"
#include "runtime/host_group.h"
#include "runtime/step.h"
#include "runtime/virtual_device.h"
#include "sim/base/error.h"
#include "tests/fakes/small_plans.h"
#include "traces/check_order.h"

using namespace dbo;
using namespace dbo::runtime;

namespace {

/// All ranks of `plan`, each with its threads, on virtual devices of one world.
struct VirtualMachine {
  explicit VirtualMachine(const Plan& plan)
      : linear(linearise(plan, 0)), world(plan.world.ranks), group(plan.world.ranks) {
    for (int rank = 0; rank < plan.world.ranks; ++rank) {
      devices.push_back(std::make_unique<VirtualDevice>(plan, linear, &world));
      runners.push_back(std::make_unique<StepRunner>(plan, 0, linear, *devices.back(),
                                                     StepOptions{.spin = Ns{20'000}, .refuse_unsound = true}));
    }
  }

  void run() {
    world.reset();
    run_ranks(group, world.ranks(),
              [&](HostGroup& member) { runners[static_cast<std::size_t>(member.rank())]->run(); });
  }

  Trace play(std::uint64_t seed) const {
    std::vector<const VirtualDevice*> all;
    for (const auto& device : devices) all.push_back(device.get());
    return play_virtual(all, {.seed = seed});
  }

  Linear linear;
  VirtualWorld world;
  InProcessGroup group;
  std::vector<std::unique_ptr<VirtualDevice>> devices;
  std::vector<std::unique_ptr<StepRunner>> runners;
};

std::vector<Plan> all_plans(int layers) {
  std::vector<Plan> plans;
  for (const ScheduleName& schedule : schedule_names()) {
    for (const TransportInfo& transport : transports()) {
      if (!serves(transport, schedule.schedule_class)) continue;
      const int most = std::min(4, schedule.most_ubatches);
      const int least = schedule.name == kSequentialSchedule ? 1 : 2;
      for (int ubatches = least; ubatches <= most; ++ubatches) {
        plans.push_back(make_plan(schedule.name, fakes::small_spec(layers, ubatches, transport.id)));
      }
    }
  }
  return plans;
}

/// The bytes of one rank's arena as the ops of a trace leave them: who wrote each granule last.
class Memory {
 public:
  Memory(const Plan& plan, const Linear& linear, const Arena& arena)
      : plan_(plan), linear_(linear), arena_(arena), granules_(arena.bytes() / kArenaAlign, kNone) {
    // What each op must find in what it reads: the last write before it in host order.
    std::map<std::pair<BufferId, std::size_t>, std::uint32_t> writer;
    expected_.resize(linear.ops.size());
    for (std::uint32_t i = 0; i < linear.ops.size(); ++i) {
      const OpDef& def = plan.op(linear.ops[i].op);
      for (const BufferId buffer : def.reads) {
        const auto found = writer.find({buffer, arena.offset(buffer, i)});
        if (found != writer.end()) expected_[i].push_back({buffer, found->second});
      }
      for (const BufferId buffer : def.writes) writer[{buffer, arena.offset(buffer, i)}] = i;
    }
  }

  /// The first read that finds another content than it must, from begin to end of the op; empty when there is none.
  std::string replay(const Trace& trace, int rank) {
    struct Moment {
      SimTime time;
      bool begins;
      std::uint32_t op;
    };
    std::vector<Moment> moments;
    for (const TraceOp& op : trace.ops) {
      if (op.rank != rank) continue;
      moments.push_back({op.start, true, op.plan_op});
      moments.push_back({op.end, false, op.plan_op});
    }
    // Ends come before begins of the same time: what a wait orders may begin in the instant the other ends.
    std::sort(moments.begin(), moments.end(), [](const Moment& a, const Moment& b) {
      if (a.time != b.time) return a.time < b.time;
      return a.begins < b.begins;
    });
    for (const Moment& moment : moments) {
      const std::string wrong = moment.begins ? read(moment.op) : "";
      if (!wrong.empty()) return wrong;
      if (!moment.begins) {
        const std::string overwritten = read_at_end(moment.op);
        if (!overwritten.empty()) return overwritten;
      }
      for (const BufferId buffer : plan_.op(linear_.ops[moment.op].op).writes) write(buffer, moment.op);
    }
    return {};
  }

 private:
  std::size_t slot_granules(BufferId buffer) const {
    for (const ArenaSlot& slot : arena_.slots()) {
      if (slot.use.buffer == buffer) return slot.bytes / kArenaAlign;
    }
    return 0;
  }

  std::string read(std::uint32_t op) const {
    for (const auto& [buffer, writer] : expected_[op]) {
      const std::string wrong = check(buffer, op, writer);
      if (!wrong.empty()) return wrong;
    }
    return {};
  }

  // At its end an op that writes in place sees itself.
  std::string read_at_end(std::uint32_t op) const {
    const auto& writes = plan_.op(linear_.ops[op].op).writes;
    for (const auto& [buffer, writer] : expected_[op]) {
      const bool in_place = std::find(writes.begin(), writes.end(), buffer) != writes.end();
      const std::string wrong = check(buffer, op, in_place ? op : writer);
      if (!wrong.empty()) return wrong;
    }
    return {};
  }

  std::string check(BufferId buffer, std::uint32_t op, std::uint32_t writer) const {
    const std::size_t first = arena_.offset(buffer, op) / kArenaAlign;
    for (std::size_t g = first; g < first + slot_granules(buffer); ++g) {
      if (granules_[g] == writer) continue;
      return describe(plan_, linear_.ops[op]) + " reads " + plan_.buffers[buffer].name + " of " +
             describe(plan_, linear_.ops[writer]) + " and finds that of " +
             (granules_[g] == kNone ? "nobody" : describe(plan_, linear_.ops[granules_[g]]));
    }
    return {};
  }

  void write(BufferId buffer, std::uint32_t op) {
    const std::size_t first = arena_.offset(buffer, op) / kArenaAlign;
    for (std::size_t g = first; g < first + slot_granules(buffer); ++g) granules_[g] = op;
  }

  const Plan& plan_;
  const Linear& linear_;
  const Arena& arena_;
  std::vector<std::uint32_t> granules_;
  std::vector<std::vector<std::pair<BufferId, std::uint32_t>>> expected_;
};

}  // namespace

TEST_CASE("schedules: every one, with every transport and 1 to 4 ubatches, runs in the plan's order on all ranks") {
  for (const int layers : {1, 2, 5}) {
    for (const Plan& plan : all_plans(layers)) {
      CAPTURE(layers);
      VirtualMachine machine(plan);
      REQUIRE(problems_text(machine.linear) == "");
      for (int step = 0; step < 2; ++step) {
        machine.run();
        for (const auto& device : machine.devices) REQUIRE(compare_queues(*device) == "");
      }
      for (std::uint64_t seed = 0; seed < 3; ++seed) {
        const auto findings = check_order(plan, machine.play(seed));
        CHECK(findings.empty());
        if (!findings.empty()) MESSAGE(findings[0].text);
      }
    }
  }
}

TEST_CASE("schedules: buffers laid out from reads and writes keep every content until its last reader has ended") {
  for (const Plan& plan : all_plans(4)) {
    VirtualMachine machine(plan);
    machine.run();
    // Sizes that differ, so that slots overlap in every way.
    std::vector<std::size_t> bytes;
    for (std::size_t i = 0; i < plan.buffers.size(); ++i) bytes.push_back(256 * (1 + (i * 5) % 7));
    const Arena arena(plan, machine.linear, bytes);
    CHECK(arena.bytes() <= arena.plain_bytes());
    for (std::uint64_t seed = 0; seed < 5; ++seed) {
      Memory memory(plan, machine.linear, arena);
      CHECK(memory.replay(machine.play(seed), 0) == "");
    }
  }
}

TEST_CASE("schedules: without its waits a high-throughput plan is refused by the arena") {
  Plan plan = make_plan("vllm-ht", fakes::small_spec(3, 2, Transport::LsaHt));
  for (Block& block : plan.blocks) {
    std::erase_if(block.body, [](const Instruction& i) { return i.verb == Verb::Wait; });
  }
  const Linear linear = linearise(plan, 0);
  CHECK_THROWS_AS(Arena(plan, linear, std::vector<std::size_t>(plan.buffers.size(), 256)), FindingError);
}
