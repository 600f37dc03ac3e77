// report.html: a comparison for a person, in one file that needs nothing else.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "traces/compare.h"

namespace dbo {

struct ReportOptions {
  std::string title = "Predicted and measured";
  std::vector<std::string> assumptions;  ///< of the prediction
  /// Idle time of the compute lane by cause, predicted: name and time.
  std::vector<std::pair<std::string, Ns>> bubbles;
  std::size_t max_ops = 200'000;  ///< ops of each timeline at most: the first by start
};

/// Both timelines one above the other on one time axis (zoom, hover, jump to an op, arrows between lanes and ranks),
/// verdict, named findings, order, windows, errors by kind of op, bubbles by cause, what the step's error is made of,
/// assumptions. Everything but moving about in the timelines works without scripts, and for a screen reader.
std::string report_html(const CompareInput& input, const Comparison& comparison, const ReportOptions& options = {});

}  // namespace dbo
