// The parts of published prefill layers beside what a prediction makes of each.
#pragma once

#include <string>
#include <vector>

namespace dbo::published {

/// One part of one layer, both batches, in us: what its kernels take, or how long a lane does nothing.
struct PartRow {
  std::string name, part;
  double published = 0, predicted = 0;
};

/// The parts of every row of tests/data/published_steps.json that has them. A row names how much its rank's experts had
/// to do, of the mean; the predicted rank is the one nearest to that.
std::vector<PartRow> read_parts(const std::string& path);

}  // namespace dbo::published
