// Prints, as markdown, how compute beside communication compares with published measurements.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "sim/base/error.h"
#include "tests/sim/engine/interference.h"

namespace {

using namespace dbo;

/// A row for what runs beside, a pair of columns for each GEMM: "published / predicted".
void print_matrix(const std::vector<published::InterferenceRow>& rows) {
  std::vector<std::string> gemms, engines;
  for (const published::InterferenceRow& row : rows) {
    if (std::find(gemms.begin(), gemms.end(), row.gemm) == gemms.end()) gemms.push_back(row.gemm);
    if (std::find(engines.begin(), engines.end(), row.engine) == engines.end()) engines.push_back(row.engine);
  }
  std::printf("| beside the GEMM |");
  for (const std::string& gemm : gemms) std::printf(" %s |", gemm.c_str());
  std::printf("\n|---|");
  for (std::size_t g = 0; g < gemms.size(); ++g) std::printf("---|");
  std::printf("\n");
  for (const std::string& engine : engines) {
    std::printf("| %s |", engine.c_str());
    for (const std::string& gemm : gemms)
      for (const published::InterferenceRow& row : rows) {
        if (row.gemm != gemm || row.engine != engine) continue;
        std::printf(" %.2f", row.low);
        if (row.high > row.low) std::printf("-%.2f", row.high);
        std::printf(" / %.2f |", row.predicted);
      }
    std::printf("\n");
  }
}

}  // namespace

int main() {
  try {
    print_matrix(published::interference_rows());
    std::printf("\n| copy-engine step inside a graph, KB | published us | predicted us |\n|---|---|---|\n");
    for (const published::CopyRow& row : published::copy_rows())
      std::printf("| %.0f | %.0f-%.0f | %.1f |\n", row.bytes / 1024, row.low_us, row.high_us, row.predicted_us);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "interference_accuracy: %s\n", error.what());
    return static_cast<int>(Exit::Bug);
  }
}
