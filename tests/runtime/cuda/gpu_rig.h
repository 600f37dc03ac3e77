// What the GPU tests of the runtime share: ranks on GPUs of this machine, and stand-ins with drawn durations.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/cuda/process.h"
#include "runtime/cuda/rank_replay.h"
#include "runtime/host_group.h"
#include "tests/fakes/small_plans.h"
#include "tests/runtime/plans.h"

namespace dbo::test {

inline int gpu_count() {
  static const int count = static_cast<int>(runtime::list_gpus().size());
  return count;
}

/// The hang guard of the test program: a test that hangs ends its process with exit code 3 and says where.
inline runtime::HangGuard& guard() {
  static runtime::HangGuard the_guard(Ns{10'000'000'000});
  return the_guard;
}

/// Durations of `shortest` to `longest` for everything that computes, shorter ones for sends and receives, and a wire.
inline std::vector<runtime::StandInWork> drawn_work(const Plan& plan, const Linear& linear, std::uint64_t seed,
                                                    Ns shortest, Ns longest, int compute_sms = 100, int comm_sms = 16) {
  Draw draw(seed);
  std::vector<runtime::StandInWork> work;
  const auto between = [&](Ns low, Ns high) {
    return low + Ns{draw.below(static_cast<int>((high - low).count()) + 1)};
  };
  for (const LinearOp& op : linear.ops) {
    const OpDef& def = plan.op(op.op);
    runtime::StandInWork w;
    w.time = between(shortest, longest);
    w.blocks = def.sms == SmPool::Comm ? comm_sms : compute_sms;
    if (is_send(def.kind) || is_recv(def.kind)) w.time = between(Ns{5'000}, Ns{15'000});
    if (is_recv(def.kind)) w.wire = between(shortest, longest);
    if (is_collective(def.kind)) w.notify = Ns{5'000};
    work.push_back(w);
  }
  return work;
}

/// Runs `body` on a rank per GPU, all in this process.
inline void on_gpus(int gpus, const std::function<void(runtime::HostGroup&)>& body) {
  runtime::InProcessGroup group(gpus, Ns{30'000'000'000});
  runtime::run_ranks(group, gpus, body);
}

inline runtime::ReplayOptions on_gpu(int gpu) {
  runtime::ReplayOptions options;
  options.gpu = gpu;
  return options;
}

inline bool host_blocks(const Linear& linear) {
  return std::any_of(linear.host.begin(), linear.host.end(),
                     [](const HostStep& step) { return step.verb == Verb::HostWait; });
}

/// Every built-in schedule with one transport of each class it serves, and every ubatch count up to three.
inline std::vector<Plan> schedule_plans(int layers, int ranks) {
  std::vector<Plan> plans;
  for (const ScheduleName& schedule : schedule_names()) {
    for (const Transport transport : {Transport::Ht, Transport::LsaHt, Transport::LsaLl}) {
      if (!serves(transport_info(transport), schedule.schedule_class)) continue;
      const int least = schedule.name == kSequentialSchedule ? 1 : 2;
      for (int ubatches = least; ubatches <= std::min(3, schedule.most_ubatches); ++ubatches) {
        ScheduleSpec spec = fakes::small_spec(layers, ubatches, transport);
        spec.world = {std::max(ranks, 1), std::max(ranks, 1)};
        spec.classes = {{{{0, std::max(ranks, 1)}}, 0}};
        plans.push_back(make_plan(schedule.name, spec));
      }
    }
  }
  return plans;
}

}  // namespace dbo::test
