// The ranks' votes and what follows from them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/batch/decide.h"
#include "sim/batch/graph.h"
#include "sim/batch/summary.h"

namespace dbo {

/// The decision without slices and texts.
struct Verdict {
  Reason reason = Reason::Disabled;
  GraphOutcome graph;
  std::vector<std::int8_t> votes;

  bool split() const { return reason == Reason::Split; }
};

Verdict judge(const StepSummary& step, const DecideSettings& settings);

/// The matrix the ranks exchange, by runner: all its rows.
std::vector<VoteRow> vote_rows(const StepSummary& step, const DecideSettings& settings, const Verdict& verdict);

/// The reason in words, with ranks and numbers.
std::string reason_text(const StepSummary& step, const DecideSettings& settings, const Verdict& verdict);

}  // namespace dbo
