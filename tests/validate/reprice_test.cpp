// What a run measured, priced again: the same bytes by the same profile, other predictions of the same measurements by
// another, and nothing of another plan.
#include "validate/reprice.h"
#include "tests/traces/temp_dir.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>

#include "runtime/measured_trace.h"
#include "sim/base/error.h"
#include "sim/base/files.h"
#include "sim/model/presets.h"
#include "validate/judge.h"

using namespace dbo;
using namespace dbo::validate;

namespace {

const testing::TempDir& folder() {
  static const testing::TempDir dir;
  return dir;
}

/// A profile of V2-Lite without points: costs are analytical, launches take `launch`.
std::string profile(const std::string& name, Ns launch) {
  Profile profile;
  profile.machine.gpu = "NVIDIA H200";
  profile.machine.preset = "h200-sxm";
  profile.date = "2026-12-01";
  profile.shape = replay_shape(model_preset("deepseek-v2-lite"));
  HostCosts host;
  host.node_gap = launch / 2;
  host.launch = launch;
  profile.host = host;
  const std::string path = folder().file(name);
  write_file(path, pretty_json(profile_to_json(profile)));
  return path;
}

Suite suite_of(const std::vector<std::string>& names) {
  Suite suite = load_suite("default");
  std::erase_if(suite.entries, [&](const SuiteEntry& entry) {
    return std::find(names.begin(), names.end(), entry.name) == names.end();
  });
  return suite;
}

/// As if replayed by ranks of unequal speed: op `i` of rank r took (1 + (i mod 7 + r) / 100) times what was predicted.
MeasuredPlan replayed(const ValidationCase& validated, const PredictedPlan& predicted) {
  MeasuredPlan measured;
  std::vector<Linear> orders;
  std::vector<const Linear*> pointers;
  std::vector<runtime::RankTimes> ranks(static_cast<std::size_t>(validated.ranks_replayed()));
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const int rank = static_cast<int>(r);
    orders.push_back(linearise(predicted.plan, predicted.plan.class_of(rank)));
    ranks[r].rank = rank;
    ranks[r].residual_ns = 1600;
    ranks[r].ops.resize(orders.back().ops.size());
  }
  for (const Linear& order : orders) pointers.push_back(&order);
  for (const TraceOp& op : predicted.result.trace.ops) {
    if (op.plan_op == kNoPlanOp || is_wire(op.kind)) continue;
    const std::int64_t begin = op.start.time_since_epoch().count() * 107 / 100 - op.rank * 400;
    const std::int64_t took = (op.end - op.start).count() * (100 + static_cast<int>(op.plan_op % 7) + op.rank) / 100;
    ranks[static_cast<std::size_t>(op.rank)].ops[op.plan_op] = {true, begin, 0,
                                                                begin + std::max<std::int64_t>(took, 1)};
  }
  for (const runtime::OpTime& op : ranks[0].ops) {
    measured.op_us.push_back(static_cast<double>(op.end_ns - op.begin_ns) / 1000);
    measured.entry_us.push_back(op.ran ? static_cast<double>(op.begin_ns % 5) / 3 : -1);
  }
  measured.trace = runtime::measured_trace(predicted.plan, pointers, ranks);
  measured.trace.metadata.set("op_starts", "lanes");
  const double step = static_cast<double>(predicted.result.step_ns) / 1000 * 1.07;
  for (int i = 0; i < 23; ++i) {
    measured.steps_us.push_back(step * (1 + (i * 7 % 23) / 3000.0));
    measured.host_us.push_back(step / 3);
    measured.clocks_mhz.push_back(1750 + i * 11 % 23);
  }
  measured.tracing_us = 77.1 / 3;
  return measured;
}

/// What a run of the suite by `profile_path` leaves in `out`, made of predictions instead of replays.
std::vector<Outcome> run_suite(const Suite& suite, const std::string& profile_path, const std::string& out) {
  std::vector<Outcome> outcomes;
  for (const SuiteEntry& entry : suite.entries) {
    CaseOrigin origin{entry.config, profile_path, {}};
    origin.options.gpus = std::min(2, entry.config.cluster.gpus());
    origin.options.name = entry.name;
    const ValidationCase validated = make_case(entry.config, profile_path, origin.options);
    MeasuredCase measured;
    measured.device = "NVIDIA H200";
    measured.versions = "dbo 0.1.0 (abc), CUDA 13.0";
    measured.highest_mhz = 1980;
    measured.how = {"peer-mapped memory"};
    measured.before = {170.25, 397.125};
    measured.after = {171, 398};
    measured.numerics.tokens = 8;
    for (const PredictedWay& way : validated.ways)
      measured.ways.push_back({way.graph, replayed(validated, way.split), replayed(validated, way.unsplit)});
    const std::string at = out + "/" + entry.name;
    JudgedCase judged = judge_case(origin, validated, measured);
    judged.outcome.seconds = 1.5;
    write_case_files(at, true, validated, measured, judged);
    write_outcome(at, judged.outcome);
    outcomes.push_back(judged.outcome);
  }
  write_suite_tables(out, outcomes);
  return outcomes;
}

/// One with receives whose wait the prediction tells, one with comm kernels, one with emulated wires.
const Suite& three() {
  static const Suite suite = suite_of({"v2l-decode-80-ep2-ll", "v2l-prefill-1536-ep2-ht8", "v2l-decode-320-ep16-ll"});
  return suite;
}

const std::string& measured_folder() {
  static const std::string path = [] {
    const std::string out = folder().file("run");
    run_suite(three(), profile("run.profile.json", Ns{3000}), out);
    return out;
  }();
  return path;
}

RepriceOptions by(const std::string& profile_path, const std::string& out = {}) {
  RepriceOptions options;
  options.profiles = {profile_path};
  options.program = "dbo 0.1.0";
  options.out = out;
  return options;
}

std::string recorded() {
  return std::string(DBO_TEST_DATA) + "/recorded-h200-v2l-sglang";
}

}  // namespace

TEST_CASE(
    "reprice: with the profile of the run its own tables come back byte for byte, also from what it wrote itself") {
  const std::string again = folder().file("again"), third = folder().file("third");
  const RepricedSuite repriced =
      reprice_suite(three(), measured_folder(), by(profile("same.profile.json", Ns{3000}), again));
  CHECK(repriced.lacking.empty());
  REQUIRE(repriced.outcomes.size() == 3);
  for (const char* const table : {"/suite.txt", "/suite.md", "/suite.csv"})
    CHECK(read_file(again + table) == read_file(measured_folder() + table));
  // Windows and waits of receives are in them.
  CHECK(read_file(again + "/suite.txt").find("window D[0]|A[1], eager") != std::string::npos);
  CHECK(read_file(again + "/suite.txt").find("D.wire un-split, graph") != std::string::npos);
  const Outcome& first = repriced.outcomes.front();
  CHECK(first.notes.back() == "measured by dbo 0.1.0 (abc), CUDA 13.0; priced again by dbo 0.1.0");
  reprice_suite(three(), again, by(profile("same.profile.json", Ns{3000}), third));
  CHECK(read_file(third + "/suite.txt") == read_file(again + "/suite.txt"));
}

TEST_CASE("reprice: another profile changes what is predicted and nothing that was measured") {
  const std::vector<Outcome> was = [] {
    std::vector<Outcome> outcomes;
    for (const SuiteEntry& entry : three().entries)
      outcomes.push_back(outcome_from_json(JsonRef(load_json(measured_folder() + "/" + entry.name + "/outcome.json"))));
    return outcomes;
  }();
  const RepricedSuite now = reprice_suite(three(), measured_folder(), by(profile("slow.profile.json", Ns{9000})));
  REQUIRE(now.outcomes.size() == was.size());
  for (std::size_t i = 0; i < was.size(); ++i) {
    CAPTURE(was[i].name);
    CHECK(now.outcomes[i].key != was[i].key);
    REQUIRE(now.outcomes[i].ways.size() == 2);
    for (std::size_t w = 0; w < 2; ++w) {
      const WayOutcome &then = was[i].ways[w], &is = now.outcomes[i].ways[w];
      CHECK(is.split == then.split);
      CHECK(is.unsplit == then.unsplit);
      CHECK(is.split_mhz == then.split_mhz);
      CHECK(is.predicted_split_us > then.predicted_split_us);
      const auto of = [](const WayOutcome& way, const std::string& what) {
        for (const ErrorRow& row : way.kinds)
          if (row.what == what) return row.measured;
        return 0.0;
      };
      CHECK(of(then, "A1 un-split") > 0);
      CHECK(of(is, "A1 un-split") == of(then, "A1 un-split"));
    }
  }
}

TEST_CASE("reprice: what a run lacks is named, and what it failed at stays so") {
  const std::string partial = folder().file("partial");
  const Suite run = suite_of({"v2l-decode-80-ep2-ll"});
  const std::string path = profile("run.profile.json", Ns{3000});
  run_suite(run, path, partial);
  Outcome failed;
  failed.name = "v2l-prefill-1536-ep2-ht8";
  failed.numerics.problems = {"cannot run: no memory"};
  make_folder(partial + "/" + failed.name);
  write_outcome(partial + "/" + failed.name, failed);
  const RepricedSuite repriced = reprice_suite(three(), partial, by(path));
  CHECK(repriced.lacking == std::vector<std::string>{"v2l-decode-320-ep16-ll"});
  REQUIRE(repriced.outcomes.size() == 2);
  CHECK(repriced.outcomes.back().failures() == failed.numerics.problems);
  CHECK_THROWS_AS(reprice_suite(suite_of({"v2l-decode-320-ep2-copy"}), partial, by(path)), InputError);
}

TEST_CASE("reprice: a config whose plan or emulated wires are others now is refused") {
  const std::string path = profile("run.profile.json", Ns{3000});
  const auto message = [&](Suite suite) {
    try {
      reprice_suite(suite, measured_folder(), by(path));
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string("nothing was refused");
  };
  Suite changed = suite_of({"v2l-decode-80-ep2-ll"});
  changed.entries.front().config.model.layers = 12;
  CHECK(message(changed).find("measured.json: /ways/0/split/plan_hash: is another plan than the config's now") !=
        std::string::npos);
  Suite slower = suite_of({"v2l-decode-320-ep16-ll"});
  slower.entries.front().config.cluster.fabric.latency_s += 1e-6;
  CHECK(message(slower).find("wires_hash: stands for other wires") != std::string::npos);
}

TEST_CASE("reprice: the folder of the run is never written to") {
  const RepriceOptions inside = by(profile("run.profile.json", Ns{3000}), measured_folder() + "/x/../again");
  CHECK_THROWS_AS(reprice_suite(three(), measured_folder(), inside), InputError);
  RepriceOptions same = inside;
  same.out = measured_folder() + "/";
  CHECK_THROWS_AS(reprice_suite(three(), measured_folder() + "/.", same), InputError);
  CHECK_FALSE(std::filesystem::exists(measured_folder() + "/again"));
  CHECK_FALSE(std::filesystem::exists(measured_folder() + "/x"));
}

TEST_CASE("reprice: of a run that kept its outcome and one trace, steps and that trace's ops are judged") {
  const Suite suite = suite_of({"v2l-decode-160-ep16-ll-sglang"});
  const Outcome was = outcome_from_json(JsonRef(load_json(recorded() + "/outcome.json")));
  const Outcome now =
      reprice_config(suite.entries.front().config, was.name, recorded(), by(profile("any.profile.json", Ns{3000})));
  CHECK(now.device == "NVIDIA H200");
  CHECK(now.anchor_before == was.anchor_before);
  CHECK(now.numerics == was.numerics);
  CHECK(now.notes[now.notes.size() - 1].find("measured before runs kept everything") == 0);
  REQUIRE(now.ways.size() == 2);
  for (std::size_t w = 0; w < 2; ++w) {
    CHECK(now.ways[w].split == was.ways[w].split);
    CHECK(now.ways[w].unsplit == was.ways[w].unsplit);
    CHECK(now.ways[w].tracing_us == was.ways[w].tracing_us);
    CHECK(now.ways[w].predicted_split_us != was.ways[w].predicted_split_us);
    // The un-split step's traces were not kept.
    CHECK(std::none_of(now.ways[w].kinds.begin(), now.ways[w].kinds.end(),
                       [](const ErrorRow& row) { return row.what.find("un-split") != std::string::npos; }));
  }
  CHECK(now.ways[1].kinds.empty());
  // Every measured median of the first way's split step, wires apart: whether those were seen depends on the wait.
  int rows = 0;
  for (const ErrorRow& then : was.ways[0].kinds) {
    if (then.what.find("un-split") != std::string::npos || then.what.find("wire") != std::string::npos) continue;
    const auto is = std::find_if(now.ways[0].kinds.begin(), now.ways[0].kinds.end(),
                                 [&](const ErrorRow& row) { return row.what == then.what; });
    CAPTURE(then.what);
    REQUIRE(is != now.ways[0].kinds.end());
    CHECK(is->measured == then.measured);
    ++rows;
  }
  CHECK(rows > 5);
}
