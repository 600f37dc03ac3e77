// Faults that are planted into a replay on purpose, to prove that validation finds and names them. A fault is worked
// out from the plan alone: which calls of a device are tampered with, what must last longer so that the fault shows
// every time, which memory is used wrongly.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/units.h"
#include "sim/plan/linearise.h"
#include "sim/plan/plan.h"

namespace dbo::validate {

/// One fault on one rank; the same on all ranks of a class, as a fault of a program is.
struct Fault {
  std::string code;  ///< named failure: "F3"
  std::string what;  ///< what was planted, for people

  // Calls of the device that go wrong.
  std::vector<std::uint32_t> late_records;   ///< into Linear::records: made only just before their first wait
  std::vector<std::uint32_t> dropped_waits;  ///< into Linear::waits
  std::vector<std::uint32_t> dropped_ops;    ///< plan_op: never launched
  std::optional<std::uint32_t> moved_op;     ///< plan_op: launched on `moved_to`
  LaneId moved_to = kComputeLane;
  std::optional<std::uint32_t> freed_after;  ///< plan_op: what it wrote is overwritten by somebody else behind it

  /// By plan_op: what an op lasts longer, so that the order of two ops does not depend on luck.
  std::map<std::uint32_t, Ns> longer;
  bool takes_all_sms = false;  ///< while it lasts longer, on all SMs

  // Memory.
  bool share_rows = false;     ///< ubatches have one buffer for the input of their experts
  bool route_padding = false;  ///< padding rows pick experts like tokens
};

/// The codes that can be planted, in order.
const std::vector<std::string_view>& fault_codes();

/// The fault of that code for a rank of the class `linear` is of. `unsplit_step`: what F16 must outlast. Throws
/// InputError for a code that no replay can show, and for plans that have no place for it (why, and what to change).
Fault plan_fault(std::string_view code, const Plan& plan, const Linear& linear, Ns unsplit_step);

/// `linear` as a device with that fault is given it: a moved op is on its other lane.
Linear given_order(const Linear& linear, const Fault& fault);

}  // namespace dbo::validate
