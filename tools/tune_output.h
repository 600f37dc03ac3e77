// What `dbo tune` prints and writes: table, JSON, CSV and the picture of gain over batch size.
#pragma once

#include <string>
#include <vector>

#include "sim/base/json.h"
#include "sim/search/tune_report.h"

namespace dbo {

/// A finished sweep: what all outputs are made of.
struct TuneOutput {
  const Config& config;
  const TuneGrid& grid;
  const std::vector<TuneResult>& results;
  const TuneGoal& goal;
  TuneReport report;
};

std::string tune_table(const TuneOutput& out);
Json tune_json(const TuneOutput& out);
/// One line a point, in the grid's order.
std::string tune_csv(const TuneOutput& out);
/// Gain over batch size: best split against best un-split setting, and each server's own setting.
std::string tune_svg(const TuneOutput& out);

/// "vllm-ht over ht, 2 ubatches, 16 SMs, limit".
std::string setting_text(const TunePoint& point);

}  // namespace dbo
