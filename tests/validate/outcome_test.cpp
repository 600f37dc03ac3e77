// From a replay's times to an outcome, without a GPU: what a GPU would have measured is made from the prediction.
#include "validate/outcome.h"
#include "tests/traces/temp_dir.h"

#include <doctest/doctest.h>
#include <algorithm>
#include <cmath>

#include "runtime/measured_trace.h"
#include "sim/base/error.h"
#include "sim/base/files.h"
#include "sim/model/presets.h"
#include "traces/report_html.h"
#include "validate/suite.h"

using namespace dbo;
using namespace dbo::validate;

namespace {

std::string empty_profile(const ModelShape& shape) {
  Profile profile;
  profile.machine.gpu = "NVIDIA H200";
  profile.machine.preset = "h200-sxm";
  profile.date = "2026-11-30";
  profile.shape = shape;
  HostCosts host;
  host.node_gap = Ns{1000};
  host.launch = Ns{2000};
  profile.host = host;
  static const testing::TempDir folder;
  const std::string path = folder.file("outcome_test.profile.json");
  write_file(path, pretty_json(profile_to_json(profile)));
  return path;
}

const ValidationCase& two_gpus() {
  static const ValidationCase validated = [] {
    const Suite suite = load_suite("default");
    for (const SuiteEntry& entry : suite.entries) {
      if (entry.name != "v2l-decode-320-ep2-ht24") continue;
      CaseOptions options;
      options.gpus = 2;
      options.name = entry.name;
      return make_case(entry.config, empty_profile(replay_shape(entry.config.model)), options);
    }
    return ValidationCase{};
  }();
  return validated;
}

/// Times of a step in which everything lasted `factor` times what was predicted, as ranks would hand them over.
MeasuredPlan replayed(const PredictedPlan& predicted, double factor, Ns late_comm = {}) {
  MeasuredPlan measured;
  const auto scaled = [&](SimTime t) {
    return static_cast<std::int64_t>(static_cast<double>(t.time_since_epoch().count()) * factor);
  };
  std::vector<Linear> orders;
  std::vector<runtime::RankTimes> ranks(2);
  for (int rank = 0; rank < 2; ++rank) {
    orders.push_back(linearise(predicted.plan, predicted.plan.class_of(rank)));
    runtime::RankTimes& times = ranks[static_cast<std::size_t>(rank)];
    times.rank = rank;
    times.ops.resize(orders.back().ops.size());
  }
  for (const TraceOp& op : predicted.result.trace.ops) {
    if (op.plan_op == kNoPlanOp || is_wire(op.kind)) continue;
    const Ns shift = is_collective(op.kind) ? late_comm : Ns{};
    runtime::RankTimes& times = ranks[static_cast<std::size_t>(op.rank)];
    times.ops[op.plan_op] = {true, scaled(op.start) - shift.count(), 0, scaled(op.end) - shift.count(), 0};
  }
  for (const runtime::OpTime& op : ranks[0].ops)
    measured.op_us.push_back(static_cast<double>(op.end_ns - op.begin_ns) / 1000);
  measured.trace = runtime::measured_trace(predicted.plan, {&orders[0], &orders[1]}, ranks);
  const double step = static_cast<double>(predicted.result.step_ns) / 1000 * factor;
  measured.steps_us = {step * 0.99, step, step * 1.01};
  return measured;
}

}  // namespace

TEST_CASE("outcome: a machine 4 % slower than predicted shows as that in step, ops and verdict, with no finding") {
  const PredictedWay& way = two_gpus().ways.front();
  MeasuredWay measured;
  measured.graph = way.graph;
  measured.split = replayed(way.split, 1.04);
  measured.unsplit = replayed(way.unsplit, 1.04);
  const WayComparison compared = compare_way(way, measured, {});
  CHECK(compared.outcome.step_error(false) == doctest::Approx(1 / 1.04 - 1).epsilon(1e-6));
  CHECK(compared.outcome.gain_error() == doctest::Approx(0).epsilon(1e-6));
  CHECK(compared.outcome.order_findings == 0);
  REQUIRE(!compared.outcome.kinds.empty());
  for (const ErrorRow& row : compared.outcome.kinds) {
    CAPTURE(row.what);
    CHECK(row.error == doctest::Approx(1 / 1.04 - 1).epsilon(0.01));
  }
  for (const ErrorRow& row : compared.outcome.windows) CHECK(std::abs(row.error) < 0.01);
  // Its own durations explain the step: only the gaps between ops, of which there are some hundred, did not grow.
  CHECK(compared.outcome.structure_us == doctest::Approx(compared.outcome.split.median_us).epsilon(0.01));
  // As it was at calibration, nothing is wrong at all.
  CHECK(compare_way(way, measured, {1.04, 1.04}).outcome.step_error(true) == doctest::Approx(0).epsilon(1e-6));
  Outcome outcome;
  outcome.ways = {compared.outcome};
  CHECK(outcome.failures().empty());
  CHECK(outcome_line(outcome).find("predicted gain ") == 0);
}

TEST_CASE("outcome: wires that were over before anybody looked have no row, and hide whole") {
  const Suite suite = load_suite("default");
  for (const SuiteEntry& entry : suite.entries) {
    if (entry.name != "v2l-decode-80-ep2-ll") continue;
    CaseOptions options;
    options.gpus = 2;
    options.name = entry.name;
    const ValidationCase validated = make_case(entry.config, empty_profile(replay_shape(entry.config.model)), options);
    const PredictedWay& way = validated.ways.front();
    MeasuredWay measured;
    measured.split = replayed(way.split, 1);
    measured.unsplit = replayed(way.unsplit, 1);
    // `replayed` tells no receive's wait.
    const WayOutcome outcome = compare_way(way, measured, {}).outcome;
    for (const ErrorRow& row : outcome.kinds) CHECK(row.what.find("wire") == std::string::npos);
    REQUIRE(!outcome.windows.empty());
    for (const ErrorRow& row : outcome.windows) CHECK(row.measured == 1);
  }
}

TEST_CASE("outcome: a profile of experts in another precision is refused, and the config's precision decides") {
  Config config;
  for (const SuiteEntry& entry : load_suite("default").entries) {
    if (config.model.name.empty() && entry.config.model.name == "deepseek-v3") config = entry.config;
  }
  REQUIRE(config.model.expert_weights == Precision::Fp8);
  ModelShape measured = replay_shape(config.model);
  CaseOptions options;
  options.gpus = 1;
  CHECK(make_case(config, empty_profile(measured), options).config.model.expert_weights == Precision::Fp8);
  measured.expert_weights = Precision::Bf16;
  const std::string path = empty_profile(measured);
  const std::string message = path +
                              ": /shape/precision/expert_weights: was measured with bf16 experts, the replay runs fp8: "
                              "calibrate for those, or set /model/precision/expert_weights of the config to \"bf16\"";
  CHECK_THROWS_WITH_AS(make_case(config, path, options), message.c_str(), InputError);
  config.model.expert_weights = Precision::Bf16;
  const ValidationCase validated = make_case(config, empty_profile(measured), options);
  CHECK(validated.config.model.expert_weights == Precision::Bf16);
}

TEST_CASE("outcome: communication that began before its data is a finding against the order, by name") {
  const PredictedWay& way = two_gpus().ways.front();
  MeasuredWay measured;
  measured.graph = way.graph;
  measured.split = replayed(way.split, 1, Ns{50'000});
  measured.unsplit = replayed(way.unsplit, 1);
  const WayOutcome outcome = compare_way(way, measured, {}).outcome;
  CHECK(outcome.order_findings > 0);
  CHECK(std::any_of(outcome.named.begin(), outcome.named.end(),
                    [](const std::string& finding) { return finding.rfind("F5", 0) == 0; }));
}

TEST_CASE("outcome: that splitting does not pay is a failure only where it was predicted to pay") {
  WayOutcome way;
  way.split = {100, 0.5, 20};
  way.unsplit = {97, 0.5, 20};
  way.predicted_split_us = 100;
  way.predicted_unsplit_us = 96;
  way.named = {"F16 no benefit"};
  Outcome outcome;
  outcome.ways = {way};
  CHECK(outcome.failures().empty());
  outcome.ways[0].predicted_unsplit_us = 105;
  outcome.ways[0].unsplit.median_us = 99.5;
  CHECK(outcome.failures().size() == 2);
}

TEST_CASE("drift: a machine whose products take 10 % longer slows a step by their share alone") {
  const PredictedPlan& plan = two_gpus().ways.front().split;
  const GpuSpec& gpu = two_gpus().config.cluster.gpu;
  const Anchor before{100, 200};
  CHECK(drift_of(plan, gpu, before, before) == doctest::Approx(1));
  const double products = drift_of(plan, gpu, before, Anchor{110, 200});
  const double copies = drift_of(plan, gpu, before, Anchor{100, 220});
  const double both = drift_of(plan, gpu, before, Anchor{110, 220});
  CHECK(products >= 1);
  CHECK(copies > products);  // decode is bound by memory
  CHECK(both - 1 == doctest::Approx(products - 1 + copies - 1));
  CHECK(both <= 1.1 + 1e-9);
  CHECK(drift_of(plan, gpu, std::nullopt, before) == 1);
}

TEST_CASE("case: a profile's points that cannot be used are left out and named, as in a simulation") {
  const SuiteEntry entry = load_suite("default").entries.front();
  Profile profile = load_profile(empty_profile(replay_shape(entry.config.model)));
  for (const int duty : {100, 67, 30}) {
    ProfilePoint point;
    point.op = "A0";
    point.tokens = 64;
    point.context = 4096;
    point.sms = 132;
    point.precision = Precision::Bf16;
    point.duty = duty;
    point.sm_mhz = 2000 - duty;
    point.median_us = 20;
    point.repeats = 5;
    profile.points.push_back(point);
    if (duty == 67) profile.points.push_back(point);
  }
  profile.points[2].tokens = 128;
  const testing::TempDir folder;
  const std::string path = folder.file("stray.profile.json");
  write_file(path, pretty_json(profile_to_json(profile)));
  CaseOptions options;
  options.gpus = 2;
  const ValidationCase validated = make_case(entry.config, path, options);
  const auto names_it = [](const std::string& text) {
    return text.find("/points/3/duty: 30") != std::string::npos && text.find("cannot be used") != std::string::npos;
  };
  CHECK(std::count_if(validated.assumptions.begin(), validated.assumptions.end(), names_it) == 1);
}

TEST_CASE("drift: the clock of computation is the mean over the time of all steps, without their waiting") {
  MeasuredWay way;
  way.split.steps_us = {100, 100};
  way.split.clocks_mhz = {1500, 1500};
  way.unsplit.steps_us = {300, 300};
  way.unsplit.clocks_mhz = {1700, 1700};
  // (100 * 1500 + 300 * 1700) / 400.
  CHECK(computing_clock({way}, {{1, 1}}, 1980) == doctest::Approx(1650));
  // A third of the un-split step waits, at 1980 MHz: 300 * 1700 - 100 * 1980 = 312,000 cycles/us^-1 in 200 us.
  CHECK(computing_clock({way}, {{1, 2.0 / 3}}, 1980) == doctest::Approx((150'000.0 + 312'000.0) / 300));
  // Nothing waits at a lower clock than the mean.
  CHECK(computing_clock({way}, {{0.5, 1}}, 1000) == doctest::Approx((100 * 1500 * 0.5 + 300 * 1700) / 350));
  way.unsplit.clocks_mhz.clear();
  CHECK(computing_clock({way}, {{1, 1}}, 1980) == doctest::Approx(1500));
  CHECK(computing_clock({}, {}, 1980) == 0);
  CHECK(computing_clock({way}, {{0, 0}}, 1980) == 0);
}

TEST_CASE("drift: an anchor that moved no more than it did during the calibration says nothing") {
  const PredictedPlan& plan = two_gpus().ways.front().split;
  const GpuSpec& gpu = two_gpus().config.cluster.gpu;
  const Anchor before{100, 200}, noise{0.03, 0.06};
  CHECK(drift_of(plan, gpu, before, Anchor{102, 189}, noise) == 1);
  CHECK(drift_of(plan, gpu, before, Anchor{102, 180}, noise) < 1);
  CHECK(drift_of(plan, gpu, before, Anchor{102, 180}, noise) ==
        doctest::Approx(drift_of(plan, gpu, before, Anchor{100, 180})));
}

TEST_CASE("numerics: the bound follows roundings through the layers, and fp8 adds what falls the other way") {
  ModelShape shape;
  shape.layers = 1;
  shape.dispatch = Precision::Bf16;
  // In squares of 2^-9, two steps: 32 of the layer and 4 of the stream, of which the output is 2; 4 of the last
  // product.
  const double unit = std::ldexp(1.0, -9);
  CHECK(split_bound(shape) == doctest::Approx(std::sqrt(36.0 / 2 + 4) * unit));
  // Layer 2 finds a squared error of 36 / 2 in a stream of two, gives twice that, and rounds a stream of two layers.
  shape.layers = 2;
  CHECK(split_bound(shape) == doctest::Approx(std::sqrt((36.0 + 2 * 18 + 32 + 8) / 3 + 4) * unit));
  const double bf16 = split_bound(shape);
  shape.dispatch = Precision::Fp8;
  CHECK(split_bound(shape) == bf16);  // a model without experts dispatches nothing
  shape.moe.routed_experts = 8;
  const double found = std::sqrt(18.0) * unit;
  const double sent = std::sqrt(bf16 * bf16 + found * 0.0625 / 3);
  CHECK(split_bound(shape) == doctest::Approx(sent));
  // Experts in fp8 take what was sent as it is and round once more; what was sent in bf16 they round themselves.
  shape.expert_weights = Precision::Fp8;
  const double twice = std::sqrt(bf16 * bf16 + 2 * found * 0.0625 / 3);
  CHECK(split_bound(shape) == doctest::Approx(twice));
  shape.dispatch = Precision::Bf16;
  CHECK(split_bound(shape) == doctest::Approx(twice));
  shape.expert_weights = Precision::Bf16;
  // Far below what one lost layer of sixty-one does (1 / sqrt(61)) without fp8.
  shape.dispatch = Precision::Bf16;
  shape.layers = 61;
  CHECK(split_bound(shape) < 1 / std::sqrt(61.0));
}

TEST_CASE("outcome: a planted fault counts as caught under its own name only") {
  Outcome outcome;
  outcome.injected = "F5: MLP of ubatch 0, layer 3 does not wait for D of ubatch 0, layer 3";
  CHECK_FALSE(outcome.caught());
  outcome.numerics.problems = {"numerics: the split plan gives other bits when repeated", "F8 shared buffer: S wrote"};
  CHECK_FALSE(outcome.caught());
  outcome.ways.resize(1);
  outcome.ways[0].named = {"F5 ops began before what their lane waits for was over"};
  CHECK(outcome.caught());
  outcome.injected = "F1: something";
  outcome.ways[0].named = {"F17 SM starvation: 6 of 12"};
  CHECK_FALSE(outcome.caught());
  CHECK_FALSE(Outcome{}.caught());
}
