// Published kernel and exchange times beside what the analytical costs make of them.
#pragma once

#include <string>
#include <vector>

#include "sim/cost/analytical.h"

namespace dbo::published {

struct Point {
  std::string label;
  double measured_us = 0, predicted_us = 0;

  double ratio() const { return predicted_us / measured_us; }
};

struct Table {
  std::string name, what, gpu, source;
  std::vector<Point> points;

  double median_error() const;  ///< of |ratio - 1|
  double worst_error() const;
  double bias() const;  ///< median ratio - 1
};

/// Every table of tests/data/published_kernels.json.
std::vector<Table> read_tables(const std::string& path, const CostFactors& factors);

}  // namespace dbo::published
