// A trace: what ran when, on which lane of which rank. Predicted by the engine or measured on a machine; both join on
// (rank, layer, ubatch, op).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "sim/base/json.h"
#include "sim/base/op_kind.h"
#include "sim/base/units.h"

namespace dbo {

inline constexpr std::uint32_t kNoPlanOp = UINT32_MAX;

/// One op on one lane. Ops of zero length are not in a trace.
struct TraceOp {
  std::int32_t rank = 0;
  std::int32_t layer = -1;  ///< of the data; -1 outside the layers
  std::int16_t ubatch = 0;  ///< of the data
  OpKind kind = OpKind::Other;
  std::uint8_t lane = 0;              ///< index into Trace::lanes
  std::uint32_t name = 0;             ///< index into Trace::names: the plan's op name, or the foreign one
  std::uint32_t plan_op = kNoPlanOp;  ///< index into the linearised ops of its rank's class
  SimTime start{}, end{};
  Ns waited{};  ///< a receive: time at the head of its lane before the last data came
  std::int64_t tokens = 0, bytes = 0;
  std::int32_t sms = 0;
};

/// An arrow from one op to another: an event wait, or a send to a receive.
struct TraceFlow {
  enum class Kind : std::uint8_t { Event, Data } kind = Kind::Event;
  std::uint32_t from = 0, to = 0;  ///< indices into Trace::ops
};

/// A value that changes over time on one rank, for example SMs in use.
struct TraceCounter {
  std::string name;
  std::int32_t rank = 0;
  std::vector<std::pair<SimTime, std::int64_t>> points;
};

struct Trace {
  std::vector<std::string> lanes;  ///< "compute", "comm", then wires ("wire") or streams of a foreign trace
  std::vector<std::string> names;
  std::vector<TraceOp> ops;  ///< by rank, then lane, then start
  std::vector<TraceFlow> flows;
  std::vector<TraceCounter> counters;
  Json metadata;  ///< "plan_hash", "config", and for measured ones device, driver, versions, clocks

  std::string plan_hash() const;  ///< empty when the metadata has none
};

}  // namespace dbo
