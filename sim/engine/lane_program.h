// A program lane by lane, for the contended executor: what each lane does in turn, and where the host waits.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/engine/sharing.h"
#include "sim/engine/tape.h"

namespace dbo {

/// One item of a lane's queue.
struct LaneItem {
  TapeStep::Kind kind = TapeStep::Kind::Launch;  ///< an op, Record or Wait
  bool comm = false;                             ///< an op of dispatch or combine
  bool moves = false;                            ///< ... that moves data with SMs (not the copy after a combine)
  bool first = false;                            ///< the first op of its lane: no gap before it
  std::uint32_t step = 0;                        ///< index into Tape::steps
  std::uint32_t op = kNone;                      ///< as in TapeStep, like the others
  std::uint32_t value = kNone;
  std::uint32_t tag = kNone;
  std::uint32_t cost = kNone, wire = kNone;
  std::uint32_t segment = 0;  ///< host waits passed before it was launched
  std::int64_t issued = 0;    ///< host time from the end of the last of them
  std::int64_t gap = 0;       ///< Wait: from the event to the next op
};

/// A place where the host waits: for a call's counts (`tag`) or for the end of an op (`value`).
struct HostPoint {
  std::uint32_t step = 0;
  std::uint32_t tag = kNone, value = kNone, cost = kNone;
  std::int64_t before = 0;  ///< host time from the point before
};

/// Where everything stands at a mark, in host order.
struct LaneMark {
  std::vector<std::uint32_t> items;  ///< by lane
  std::uint32_t segment = 0;
  std::int64_t host = 0;  ///< the host's clock when it never waits
};

struct LaneProgram {
  std::vector<std::vector<LaneItem>> lanes;
  std::vector<HostPoint> points;
  std::vector<LaneMark> marks;                  ///< as in Tape
  std::vector<Share> shares, wire_shares;       ///< indexed like Tape::times
  std::vector<std::vector<std::uint32_t>> ops;  ///< by lane: the ops in order
  std::uint32_t span = 0;                       ///< most steps between a value's definition and its use
};

LaneProgram make_lanes(const Plan& plan, const CostTable& costs, const Folding& folding, std::size_t program,
                       const Linear& linear, const Tape& tape);

}  // namespace dbo
