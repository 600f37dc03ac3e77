#include "tests/sim/search/published_steps.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "sim/cost/profile.h"
#include "tests/sim/search/published_parts.h"

using namespace dbo;

namespace {

const std::vector<published::StepRow>& rows() {
  static const std::vector<published::StepRow> all = published::read_steps(DBO_TEST_DATA "/published_steps.json");
  return all;
}

/// What each figure is held to, a little above what is reached today. SGLang's prefill as a whole ran slower than its
/// own kernels: its dispatch took 1.45 times its unit test even without a second batch.
double bound(const published::StepRow& row) {
  if (row.quantity == "gain") return 0.05;
  if (row.quantity.starts_with("wait")) return 0.20;
  if (row.name.starts_with("DeepSeek decode")) return 0.03;
  if (row.name.starts_with("DeepSeek prefill")) return 0.05;
  if (row.name.starts_with("SGLang decode layer")) return 0.04;
  if (row.name.starts_with("SGLang decode")) return 0.09;
  if (row.name.ends_with("experts evenly loaded")) return 0.10;
  if (row.name.starts_with("SGLang prefill layer")) return 0.21;
  return 0.23;
}

}  // namespace

TEST_CASE("published steps: layers, steps and gains stay within stated bounds") {
  CHECK(rows().size() == 34);
  for (const published::StepRow& row : rows()) {
    CAPTURE(row.name);
    CAPTURE(row.quantity);
    CHECK(std::abs(row.error()) <= bound(row));
  }
}

TEST_CASE("published steps: on 72 H100, two batches lose at 64 requests a GPU and win at 256") {
  double at_64 = 0, at_256 = 0;
  for (const published::StepRow& row : rows()) {
    if (row.quantity != "gain") continue;
    if (row.name.find(" 64 requests") != std::string::npos) at_64 = row.predicted;
    if (row.name.find(" 256 requests") != std::string::npos) at_256 = row.predicted;
  }
  CHECK(at_64 > 0.5);
  CHECK(at_64 < 1);
  CHECK(at_256 > 1);
}

TEST_CASE("published steps: what SGLang's prefill lacks grows with its prompts, not with its batch") {
  std::map<std::string, double> miss;
  for (const published::StepRow& row : rows())
    if (row.name.starts_with("SGLang prefill, EP32") && row.quantity == "two batches") miss[row.name] = row.error();
  const std::string all = "SGLang prefill, EP32, 16,384 tokens a GPU of ";
  CHECK(miss.at(all + "1K prompts") + 0.03 < miss.at(all + "2K prompts"));
  CHECK(miss.at(all + "2K prompts") + 0.03 < miss.at(all + "4K prompts"));
  CHECK(miss.at(all + "1K prompts") < miss.at("SGLang prefill, EP32, 2048 tokens a GPU of 1K prompts") + 0.01);
  CHECK(miss.at(all + "4K prompts") < miss.at("SGLang prefill, EP32, 8192 tokens a GPU of 4K prompts") + 0.01);
}

TEST_CASE("published steps: experts as uneven as without placement account for SGLang's prompts of 4K") {
  // SGLang placed experts by prompts of 1024 tokens. It published a balancedness of 0.80 (zipf 0.95 with 32 redundant
  // experts) and 0.55 without placement on 32 GPUs; zipf 1.3 gives 0.58. What that is for each length is not published,
  // and one for all does not do: full batches of 1K prompts would be slower than they were.
  int rows_of_4k = 0;
  for (const published::StepRow& row : published::read_steps(DBO_TEST_DATA "/published_steps.json", 1.3)) {
    CAPTURE(row.name);
    CAPTURE(row.quantity);
    if (!row.name.starts_with("SGLang prefill") || row.quantity.starts_with("wait")) continue;
    if (row.name.ends_with("16,384 tokens a GPU of 1K prompts")) CHECK(row.error() < -0.08);
    if (row.name.find("of 1K prompts") != std::string::npos) continue;
    if (row.name.find("of 2K prompts") != std::string::npos) continue;
    CHECK(std::abs(row.error()) < 0.05);
    ++rows_of_4k;
  }
  CHECK(rows_of_4k == 7);
}

namespace {

using Parts = std::map<std::string, std::pair<double, double>>;  // published, predicted

const std::map<std::string, Parts>& layers() {
  static const std::map<std::string, Parts> all = [] {
    std::map<std::string, Parts> out;
    for (const published::PartRow& row : published::read_parts(DBO_TEST_DATA "/published_steps.json"))
      out[row.name][row.part] = {row.published, row.predicted};
    return out;
  }();
  return all;
}

double published_sum(const Parts& parts, const std::vector<std::string>& names) {
  double sum = 0;
  for (const std::string& name : names) sum += parts.at(name).first;
  return sum;
}

const std::string kSkewed = "SGLang prefill layer, 16K tokens, two batches";

}  // namespace

TEST_CASE("published parts: kernels of every prefill layer are those predicted, all but SGLang's dispatch") {
  REQUIRE(layers().size() == 5);
  for (const auto& layer : layers()) {
    const std::string& name = layer.first;
    const Parts& parts = layer.second;
    CAPTURE(name);
    const bool deepseek = name.starts_with("DeepSeek"), even = name.ends_with("evenly loaded");
    const auto miss = [&](const std::string& part) { return parts.at(part).second / parts.at(part).first - 1; };
    // The evenly loaded run's clock was lower: see below.
    CHECK(std::abs(miss("attention")) < (even ? 0.16 : 0.04));
    CHECK(std::abs(miss("routed GEMMs")) < (deepseek || even ? 0.04 : 0.2));
    CHECK(std::abs(miss("combine")) < 0.14);
    CHECK(std::abs(miss("dispatch")) < (deepseek ? 0.04 : even ? 0.12 : 0.42));
    // Waiting for a slower rank shows in the combine's wait or in its data: the sum counts.
    const double combine = published_sum(parts, {"combine", "combine wait"});
    CHECK(std::abs((parts.at("combine").second + parts.at("combine wait").second) / combine - 1) < 0.16);
  }
}

TEST_CASE("published parts: skewed dispatch is what the skewed layer lacks") {
  const Parts& parts = layers().at(kSkewed);
  const double lacks = parts.at("dispatch").first - parts.at("dispatch").second;
  const auto row = std::find_if(rows().begin(), rows().end(),
                                [](const published::StepRow& r) { return r.name == kSkewed && r.quantity == "layer"; });
  REQUIRE(row != rows().end());
  CHECK(lacks / (row->published - row->predicted) == doctest::Approx(1).epsilon(0.1));
}

TEST_CASE("published parts: the evenly loaded run computed as much slower as the clocks of H200 at its duty say") {
  // A GPU that computes for 96 % of a layer in place of 73 % clocks lower. Measured on H200 at 67 and 100 %.
  const std::vector<std::string> alike = {"attention", "other GEMMs", "other kernels"};
  const Parts &even = layers().at(kSkewed + ", experts evenly loaded"), &skewed = layers().at(kSkewed);
  const double published = published_sum(even, alike) / published_sum(skewed, alike);
  CHECK(published == doctest::Approx(1.092).epsilon(0.001));
  const auto computing = [&](const Parts& parts, double layer) {
    return (published_sum(parts, alike) + parts.at("routed GEMMs").first) / layer;
  };
  const double even_duty = computing(even, 36280), skewed_duty = computing(skewed, 42800);
  const Profile profile = *shipped_profile("h200-sxm", "deepseek-v3");
  double at_even = 0, at_skewed = 0;
  for (const std::string op : {"A0", "A1", "S"}) {
    const auto at = [&](int duty) {
      for (const ProfilePoint& p : profile.points)
        if (p.op == op && p.duty == duty && p.beside.empty() && p.tokens == 8192 && p.sms == 108 &&
            (op == "S" || (p.prefill && p.context == 1024)))
          return ClockedTime{p.median_us, static_cast<double>(p.sm_mhz)};
      return ClockedTime{};
    };
    const ClockCurve curve{at(100), at(67)};
    REQUIRE(curve.known());
    const auto time_at = [&](double duty) {
      return curve.at(curve.dense.mhz + (curve.relaxed.mhz - curve.dense.mhz) * (1 - duty) / 0.33);
    };
    at_even += time_at(even_duty);
    at_skewed += time_at(skewed_duty);
  }
  CHECK(at_even / at_skewed == doctest::Approx(published).epsilon(0.015));
}
