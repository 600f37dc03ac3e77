// Prints, as markdown, the parts of published prefill layers beside the predicted ones.
#include <cstdio>
#include <vector>

#include "sim/base/error.h"
#include "tests/sim/search/published_parts.h"

namespace {

/// A row for each layer, a column for each part: "published / predicted" in ms.
void print_matrix(const std::vector<dbo::published::PartRow>& rows) {
  std::size_t parts = 0;
  while (parts < rows.size() && rows[parts].name == rows.front().name) ++parts;
  std::printf("| ms a layer |");
  for (std::size_t p = 0; p < parts; ++p) std::printf(" %s |", rows[p].part.c_str());
  std::printf("\n|---|");
  for (std::size_t p = 0; p < parts; ++p) std::printf("---|");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (i % parts == 0) std::printf("\n| %s |", rows[i].name.c_str());
    std::printf(" %.1f / %.1f |", rows[i].published / 1000, rows[i].predicted / 1000);
  }
  std::printf("\n");
}

}  // namespace

int main() {
  try {
    print_matrix(dbo::published::read_parts(DBO_TEST_DATA "/published_steps.json"));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "part_accuracy: %s\n", error.what());
    return static_cast<int>(dbo::Exit::Bug);
  }
}
