#include "tests/sim/engine/interference.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>

using namespace dbo;

TEST_CASE(
    "interference: copy engines overlap best, then kernels with SMs of their own; memory-bound GEMMs gain least") {
  std::map<std::string, std::map<std::string, double>> had;
  for (const published::InterferenceRow& row : published::interference_rows())
    had[row.gemm][row.engine] = row.predicted;
  CHECK(had.size() == 3);
  for (const auto& each : had) {
    const std::string& gemm = each.first;
    const std::map<std::string, double>& by_engine = each.second;
    CAPTURE(gemm);
    for (const char* blocks : {"8 blocks", "16 blocks", "24 blocks"}) {
      CAPTURE(blocks);
      const double none = by_engine.at(std::string(blocks) + ", no control"),
                   limit = by_engine.at(std::string(blocks) + ", limit");
      CHECK(by_engine.at("copy engine") >= limit);
      // Beside a memory-bound GEMM the published ones take turns: 0.50, 0.46, 0.39 against 0.42, 0.44, 0.49.
      if (!gemm.starts_with("memory-bound")) CHECK(limit >= none);
      CHECK(had.at("memory-bound 64x4096x7168").at(std::string(blocks) + ", limit") <= limit);
    }
  }
}

TEST_CASE("interference: what is had of an overlap is off by less than 0.12 of it in the mean, over 30 measurements") {
  double off = 0;
  const std::vector<published::InterferenceRow> rows = published::interference_rows();
  CHECK(rows.size() == 30);
  for (const published::InterferenceRow& row : rows)
    off += std::max({row.low - row.predicted, row.predicted - row.high, 0.0}) / static_cast<double>(rows.size());
  CAPTURE(off);
  CHECK(off < 0.12);
}

TEST_CASE("interference: a copy-engine step takes what was measured, within 15 %") {
  for (const published::CopyRow& row : published::copy_rows()) {
    CAPTURE(row.bytes);
    CHECK(row.predicted_us >= 0.85 * row.low_us);
    CHECK(row.predicted_us <= 1.15 * row.high_us);
  }
}
