// Prints, as markdown, how compute beside communication compares with published measurements.
#include <cstdio>
#include <string>

#include "sim/base/error.h"
#include "tests/sim/engine/interference.h"

int main() {
  using namespace dbo;
  try {
    std::printf("| GEMM chain | beside it | overlap had, published | predicted |\n|---|---|---|---|\n");
    for (const published::InterferenceRow& row : published::interference_rows()) {
      char range[32];
      if (row.low == row.high) {
        std::snprintf(range, sizeof range, "%.2f", row.low);
      } else {
        std::snprintf(range, sizeof range, "%.2f-%.2f", row.low, row.high);
      }
      std::printf("| %s | %s | %s | %.2f |\n", row.gemm.c_str(), row.engine.c_str(), range, row.predicted);
    }
    std::printf("\n| copy-engine step inside a graph, KB | published us | predicted us |\n|---|---|---|\n");
    for (const published::CopyRow& row : published::copy_rows())
      std::printf("| %.0f | %.0f-%.0f | %.1f |\n", row.bytes / 1024, row.low_us, row.high_us, row.predicted_us);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "interference_accuracy: %s\n", error.what());
    return static_cast<int>(Exit::Bug);
  }
}
