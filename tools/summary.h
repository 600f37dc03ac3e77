// What `dbo simulate` says about a step: summary.json and the table.
#pragma once

#include <string>

#include "sim/base/json.h"
#include "sim/search/predict.h"

namespace dbo {

/// The contract of summary.json.
Json summary_json(const Config& config, const Prediction& prediction);
/// The same for a plan alone: decision, speed-up and baseline are null.
Json summary_json(const CostedPlan& costed, const StepResult& result);

/// The table for people, and a picture's title and subtitle.
std::string summary_table(const Config& config, const Prediction& prediction);
std::string summary_table(const CostedPlan& costed, const StepResult& result);
std::string headline(const Config& config);
std::string verdict(const Prediction& prediction);

std::string ms_text(std::int64_t ns);  ///< "12.345 ms", "850.0 us", "70 ns"

}  // namespace dbo
