// Prints, as markdown, how whole predictions compare with published steps.
#include <cstdio>

#include "sim/base/error.h"
#include "tests/sim/search/published_steps.h"

int main() {
  using namespace dbo;
  try {
    std::printf("| case | figure | published | predicted | difference |\n|---|---|---|---|---|\n");
    for (const published::StepRow& row : published::read_steps(DBO_TEST_DATA "/published_steps.json"))
      std::printf("| %s | %s, %s | %.6g | %.6g | %+.1f %% |\n", row.name.c_str(), row.quantity.c_str(),
                  row.unit.c_str(), row.published, row.predicted, 100 * row.error());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "step_accuracy: %s\n", error.what());
    return static_cast<int>(Exit::Bug);
  }
}
