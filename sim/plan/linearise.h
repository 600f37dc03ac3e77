// The order a plan fixes, worked out once: host steps, lane queues, which record each wait binds to, cross-rank tags.
// Pure and independent of time: a blocked host never passes the baton, so host order needs no clock. The engine walks
// it, the runtime's threads check each of their instructions against it, and check_order judges traces by it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/plan/plan.h"

namespace dbo {

inline constexpr std::uint32_t kNone = UINT32_MAX;

/// One launch. Its index in Linear::ops is the `plan_op` of traces.
struct LinearOp {
  OpId op = 0;
  LaneId lane = 0;
  std::uint8_t ubatch = 0;     ///< of the data, not of the thread that launched it
  std::int32_t layer = -1;     ///< of the data; -1 outside the layers
  std::uint16_t thread = 0;    ///< position in the ring of the thread that launched it
  std::uint32_t host = 0;      ///< index into Linear::host
  std::uint32_t position = 0;  ///< index into its lane's queue
  std::uint32_t call = kNone;  ///< dispatch and combine: number of the call (a send and its receive share it)
  std::uint32_t pair = kNone;  ///< a send's receive and the reverse (index into ops); itself for a comm kernel
};

/// An item of a lane's in-order queue.
struct QueueItem {
  enum class Kind : std::uint8_t { Op, Record, Wait } kind = Kind::Op;
  std::uint32_t index = 0;  ///< into ops, records or waits
};

struct LinearRecord {
  std::uint16_t thread = 0;
  EventId event = 0;
  LaneId lane = 0;
  std::uint32_t host = 0;
  std::uint32_t position = 0;  ///< in the lane's queue; covers everything before it, waits included
};

struct LinearWait {
  std::uint16_t thread = 0;
  EventId event = 0;
  LaneId lane = 0;  ///< the lane that waits
  std::uint32_t host = 0;
  std::uint32_t position = 0;
  std::uint32_t record = kNone;  ///< into records; kNone: never recorded at that point, so no wait
};

/// One instruction as executed. RunHook and Exit come before the launches of the hook they run.
struct HostStep {
  Verb verb = Verb::Launch;     ///< never Repeat or Block; Launch only when it is not skipped
  std::uint16_t thread = 0;     ///< position in the ring
  std::uint32_t index = kNone;  ///< Launch: op; Record, Wait: into records, waits; HostWait: op
  bool notify = false;          ///< HostWait
};

/// The first op of an iteration of a repeat on thread 0 of the ring: where layer boundaries lie.
struct LayerMark {
  std::int32_t layer = 0;  ///< first layer of the iteration
  std::uint16_t block = 0;
  std::uint32_t host = 0;  ///< index into Linear::host of the iteration's first step
};

/// What kept a program from running to its end, or broke a rule while it ran. An empty list is a sound order.
struct OrderProblem {
  std::string code;  ///< F-code of the named failures: F2 unequal yields, F7 hook misuse
  std::string text;  ///< who waits for whom, since which op
};

struct Linear {
  std::vector<HostStep> host;
  std::vector<LinearOp> ops;
  std::vector<LinearRecord> records;
  std::vector<LinearWait> waits;
  std::vector<std::vector<QueueItem>> queues;  ///< by lane
  std::vector<LayerMark> marks;
  std::vector<OrderProblem> problems;
};

/// The order of one class of ranks. Never throws on a valid plan: a deadlock among its threads ends the order there and
/// is one of `problems`. Cost: proportional to the instructions executed.
Linear linearise(const Plan& plan, int class_index);

/// "A1 of ubatch 0, layer 3": how messages name an op.
std::string describe(const Plan& plan, const LinearOp& op);

}  // namespace dbo
