// Published step and layer times beside what whole predictions make of them.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace dbo::published {

struct StepRow {
  std::string name, source, quantity, unit;
  double published = 0, predicted = 0;

  double error() const { return predicted / published - 1; }
};

/// Every figure of tests/data/published_steps.json: periods, steps, gains and throughput.
/// `alpha`: the rows of drawn (zipf) routing alone, with that exponent in place of their own.
std::vector<StepRow> read_steps(const std::string& path, std::optional<double> alpha = {});

}  // namespace dbo::published
