// Prints, as markdown, how the analytical costs compare with the published kernel and exchange times.
//   cost_accuracy [--points [TABLE-PREFIX]] [--factors FILE]
#include <cstdio>
#include <cstring>

#include "sim/base/error.h"
#include "tests/sim/cost/published.h"

namespace {

using namespace dbo;

void print_summary(const std::vector<published::Table>& tables) {
  std::printf("| table | what | points | median error | worst | bias |\n|---|---|---|---|---|---|\n");
  for (const published::Table& t : tables)
    std::printf("| %s | %s | %zu | %.1f %% | %.0f %% | %+.1f %% |\n", t.name.c_str(), t.what.c_str(), t.points.size(),
                100 * t.median_error(), 100 * t.worst_error(), 100 * t.bias());
}

void print_points(const std::vector<published::Table>& tables, const std::string& prefix) {
  for (const published::Table& t : tables) {
    if (!t.name.starts_with(prefix)) continue;
    std::printf("\n**%s** (%s; %s)\n\n| case | published us | predicted us | difference |\n|---|---|---|---|\n",
                t.name.c_str(), t.what.c_str(), t.source.c_str());
    for (const published::Point& p : t.points)
      std::printf("| %s | %.1f | %.1f | %+.0f %% |\n", p.label.c_str(), p.measured_us, p.predicted_us,
                  100 * (p.ratio() - 1));
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    CostFactors factors = default_factors();
    bool points = false;
    std::string prefix;
    for (int i = 1; i < argc; ++i) {
      if (std::strcmp(argv[i], "--points") == 0) {
        points = true;
        if (i + 1 < argc && argv[i + 1][0] != '-') prefix = argv[++i];
      } else if (std::strcmp(argv[i], "--factors") == 0 && i + 1 < argc) {
        factors = read_factors(JsonRef(load_json(argv[++i])));
      } else {
        std::fprintf(stderr, "usage: cost_accuracy [--points [TABLE-PREFIX]] [--factors FILE]\n");
        return static_cast<int>(Exit::Usage);
      }
    }
    const std::vector<published::Table> tables =
        published::read_tables(DBO_TEST_DATA "/published_kernels.json", factors);
    if (points) {
      print_points(tables, prefix);
    } else {
      print_summary(tables);
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "cost_accuracy: %s\n", error.what());
    return static_cast<int>(Exit::Bug);
  }
}
