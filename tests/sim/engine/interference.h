// Published measurements of compute beside an exchange, and what the engine makes of the same pair.
#pragma once

#include <string>
#include <vector>

namespace dbo::published {

/// A chain of GEMMs beside an exchange of 64 MB with one peer, both directions at once, sized to take as long alone.
struct InterferenceRow {
  std::string gemm, engine;  ///< the GEMM; what moves the data, and how SMs are set apart
  double low = 0, high = 0;  ///< published: share of the ideal gain that was had, where runs differ a range
  double predicted = 0;
};
std::vector<InterferenceRow> interference_rows();
/// The share predicted for pushes of so many blocks, of which so many fit an SM, without control beside the
/// compute-bound or the output-heavy GEMM, where the other GPU's GEMMs begin later by `phase` of one.
double uncontrolled_share(bool compute_bound, int blocks, int blocks_per_sm, double phase);

/// A step of copy-engine transfers inside a graph, both directions.
struct CopyRow {
  double bytes = 0, low_us = 0, high_us = 0, predicted_us = 0;
};
std::vector<CopyRow> copy_rows();

}  // namespace dbo::published
