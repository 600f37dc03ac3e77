// Proves a plan free of deadlocks, data races and buffer overruns, or says where it has one: before anything runs and
// whatever the durations are.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/plan/plan.h"

namespace dbo {

/// What a plan would do wrong. The codes are those of the named failures; "capture" is a host wait inside one graph.
struct PlanFinding {
  std::string code;        ///< "F5"
  bool stops = false;      ///< a deadlock or race: nothing may run it. Otherwise a warning
  std::string text;        ///< the smallest counterexample in words: who waits for what, since which op
  int rank = 0;            ///< lowest rank it was found on
  std::int64_t times = 1;  ///< how often in a step, each rank counted once
};

/// What a code stands for: "missing wait". Throws InternalError for a code that no check has.
std::string_view failure_name(std::string_view code);
/// Codes a check may find, in order.
std::vector<std::string_view> failure_codes();

struct PlanCheck {
  std::vector<PlanFinding> findings;  ///< those that stop first, each kind in the order of the step
  std::int64_t ops = 0;               ///< launches looked at; ranks with the same programs count once
  int programs = 0;                   ///< different sets of programs among the ranks

  bool stops() const { return !findings.empty() && findings.front().stops; }
};

/// Checks what a plan can show:
///   F1 ranks that order their calls differently, F15 ranks that run none; F2 unequal yields; F7 hooks run twice,
///   never, late or by the wrong ubatch; F6 more un-received calls than buffers; F5 an op that does not wait for its
///   data (an event recorded again too early included), F8 and F14 slots that are written while another ubatch's or the
///   same ubatch's op may still use them; F3 waits that cover the other ubatch's work as well; F4 comm kernels on the
///   lane of the kernels they should hide behind; F10 slices whose metadata do not fit; F11 an ubatch without tokens in
///   a graph; F17 comm kernels without SMs of their own; F18 more ubatches than the transport has handles; host waits
///   inside a graph.
/// Cost: proportional to the launches. Only what the plan states is judged: ops that name no buffers race with nobody.
PlanCheck check_plan(const Plan& plan);

/// The findings that are only warnings. Throws FindingError with the first that stops, when there is one.
std::vector<PlanFinding> warnings_or_throw(PlanCheck check);

}  // namespace dbo
