// The plan: everything that fixes order and work, never a duration. Plain data; the JSON form is in plan_json.h, the
// order it fixes in linearise.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/base/model_shape.h"
#include "sim/base/op_kind.h"
#include "sim/base/settings.h"
#include "sim/base/transport.h"

namespace dbo {

using LaneId = std::uint8_t;
using OpId = std::uint16_t;      ///< index into Plan::ops
using BufferId = std::uint16_t;  ///< index into Plan::buffers
using BlockId = std::uint16_t;   ///< index into Plan::blocks
using EventId = std::uint16_t;   ///< index into Plan::events

/// The two lanes of every schedule. Plans of foreign traces may have more.
inline constexpr LaneId kComputeLane = 0;
inline constexpr LaneId kCommLane = 1;

/// The step's SM budget. `comm` 0: no SM is set aside and compute kernels may use the whole GPU.
struct SmBudget {
  SmControl control = SmControl::Limit;
  int comm = 0;
  int compute = 0;
  int idle = 0;  ///< set aside but used by nobody

  friend bool operator==(const SmBudget&, const SmBudget&) = default;
};

/// Which SMs an op's kernels may take. All: a kernel that ignores the limit. None: copy engines or the NIC.
enum class SmPool : std::uint8_t { Compute, Comm, All, None };

/// How the slot of a buffer is picked: by the op's ubatch, or in turn by each dispatch or combine call of the rank.
enum class SlotBy : std::uint8_t { Ubatch, Call };

struct Buffer {
  std::string name;
  int slots = 1;
  SlotBy by = SlotBy::Ubatch;

  friend bool operator==(const Buffer&, const Buffer&) = default;
};

/// What every launch of one op has in common.
struct OpDef {
  std::string name;  ///< the key in the file: the kind's name, or the name of a foreign op
  OpKind kind = OpKind::Other;
  LaneId lane = kComputeLane;
  SmPool sms = SmPool::Compute;
  std::vector<BufferId> reads, writes;
  /// A send's receive; a comm kernel that all ranks run together pairs with itself.
  std::optional<OpId> pairs;

  friend bool operator==(const OpDef&, const OpDef&) = default;
};

enum class Verb : std::uint8_t { Launch, Record, Wait, Yield, Hook, RunHook, HostWait, Exit, Repeat, Block };

/// An op with the data it works on. `ubatch` -1 is the thread's own; `layer_offset` counts from the iteration's first
/// layer.
struct OpRef {
  OpId op = 0;
  std::int16_t ubatch = -1;
  std::int32_t layer_offset = 0;

  friend bool operator==(const OpRef&, const OpRef&) = default;
};

/// One instruction of a program. Which fields count depends on the verb; the others keep their defaults.
struct Instruction {
  Verb verb = Verb::Yield;
  OpRef op;                 ///< Launch, HostWait
  EventId event = 0;        ///< Record, Wait
  LaneId lane = 0;          ///< Record, Wait
  std::vector<OpRef> hook;  ///< Hook: ops the next thread of the ring will run
  bool notify = false;      ///< HostWait: until the op's counts are known (true) or until it ends
  BlockId block = 0;        ///< Repeat, Block
  std::int32_t count = 0;   ///< Repeat: iterations
  std::int32_t stride = 1;  ///< Repeat: layers an iteration

  friend bool operator==(const Instruction&, const Instruction&) = default;
};

using Program = std::vector<Instruction>;

struct Block {
  std::string name;
  Program body;

  friend bool operator==(const Block&, const Block&) = default;
};

struct Thread {
  int ubatch = 0;
  Program body;

  friend bool operator==(const Thread&, const Thread&) = default;
};

/// The part of a rank's batch one ubatch works on.
struct UbatchLoad {
  std::int64_t token_begin = 0, token_end = 0;  ///< real tokens, half-open, in the rank's batch
  std::int64_t padded = 0;                      ///< tokens computed, padding included
  std::vector<std::int32_t> query_start_loc;    ///< one more than requests; starts at 0
  std::vector<std::int32_t> seq_lens;           ///< context length of each request after the step

  std::int64_t tokens() const { return token_end - token_begin; }
  friend bool operator==(const UbatchLoad&, const UbatchLoad&) = default;
};

struct Load {
  std::vector<UbatchLoad> ubatches;

  friend bool operator==(const Load&, const Load&) = default;
};

/// Ranks that run the same threads on the same load.
struct RankClass {
  std::vector<std::pair<int, int>> ranks;  ///< half-open ranges
  std::vector<int> threads;                ///< indices into Plan::threads, ring order
  int load = 0;                            ///< index into Plan::loads

  friend bool operator==(const RankClass&, const RankClass&) = default;
};

struct World {
  int ranks = 1;
  int ranks_per_node = 1;

  int nodes() const { return (ranks + ranks_per_node - 1) / ranks_per_node; }
  friend bool operator==(const World&, const World&) = default;
};

struct Plan {
  World world;
  Execution execution = Execution::Eager;
  /// The schedule's class has one comm op (high throughput) or send and receive halves (low latency).
  Transport transport = Transport::Ll;
  int tensor_parallel = 1;
  SmBudget sm;
  ModelShape shape;
  std::vector<std::string> lanes;
  std::vector<Buffer> buffers;
  std::vector<OpDef> ops;
  std::vector<std::string> events;  ///< names; each thread has events of its own under these names
  std::vector<Block> blocks;
  std::vector<Thread> threads;
  std::vector<RankClass> classes;
  std::vector<Load> loads;
  Routing routing;

  const OpDef& op(OpId id) const { return ops[id]; }
  std::optional<OpId> find_op(std::string_view name) const;
  int class_of(int rank) const;  ///< index into classes; throws InternalError when no class has the rank

  friend bool operator==(const Plan&, const Plan&) = default;
};

}  // namespace dbo
