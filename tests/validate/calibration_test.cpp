#include "validate/calibration.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>

#include "sim/base/error.h"
#include "sim/model/presets.h"
#include "sim/plan/linearise.h"
#include "sim/plan/routing.h"

using namespace dbo;
using namespace dbo::validate;

namespace {

CalibrationScope scope() {
  CalibrationScope s;
  s.ranks = {2, 16};
  s.transports = {Transport::LsaLl, Transport::LsaHt, Transport::Nccl};
  s.comm_sms = {8, 24};
  return s;
}

}  // namespace

TEST_CASE("calibration: points are a pure list, coarse in a quick one, and survive their file") {
  const ModelShape shape = model_preset("deepseek-v3");
  const CalibrationPoints points = calibration_points(shape, scope());
  CHECK(points == calibration_points(shape, scope()));
  CHECK(points_from_json(JsonRef(wrap_json(points_to_json(points), "points"))) == points);
  CalibrationScope quick = scope();
  quick.quick = true;
  CHECK(calibration_points(shape, quick).settings.size() * 2 < points.settings.size());
  for (std::size_t i = 0; i < points.settings.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) CHECK(!(points.settings[i] == points.settings[j]));
  }
}

TEST_CASE(
    "calibration: between the sizes of exchanges a rank's own prompts are measured on a finer grid, on every split") {
  std::set<std::int64_t> exchanged, whole;
  std::map<int, std::set<std::int64_t>> split;
  for (const CalibrationSetting& s : calibration_points(model_preset("deepseek-v3"), scope()).settings) {
    CAPTURE(setting_name(s));
    if (!s.prefill || s.cached > 0 || std::find(s.ops.begin(), s.ops.end(), OpKind::A0) == s.ops.end()) continue;
    CHECK(s.context == std::min<std::int64_t>(s.tokens, 1024));  // one prompt, or several of 1024
    CHECK(std::find(s.ops.begin(), s.ops.end(), OpKind::MLP) != s.ops.end());
    const bool exchange = std::find(s.ops.begin(), s.ops.end(), OpKind::D) != s.ops.end();
    if (exchange) exchanged.insert(s.tokens);
    (s.partition ? split[s.comm_sms] : whole).insert(s.tokens);
  }
  CHECK(exchanged == std::set<std::int64_t>{512, 1024, 2048, 4096, 8192});
  CHECK(whole == std::set<std::int64_t>{512, 640, 896, 1024, 1280, 2048, 2560, 4096, 5120, 8192});
  REQUIRE(split.size() == 2);
  for (const auto& [sms, tokens] : split)
    CHECK(tokens == std::set<std::int64_t>{512, 640, 896, 1024, 1408, 2048, 2816, 4096, 8192});
}

TEST_CASE(
    "calibration: experts of every group of ranks have a finer grid where their rows take longer than their weights") {
  CalibrationScope decode = scope();
  decode.prefill = false;
  decode.transports = {Transport::LsaLl};
  // V2-Lite has 64 experts and takes 6: 32 on each of 2 ranks, whose batch has them all its own ops' grid; 4 on each of
  // 16, so that 64 tokens make 96 rows each.
  std::map<int, std::set<std::int64_t>> alone;
  for (const CalibrationSetting& s : calibration_points(model_preset("deepseek-v2-lite"), decode).settings)
    if (s.ops == std::vector<OpKind>{OpKind::MLP}) alone[s.ranks].insert(s.tokens);
  REQUIRE(alone.size() == 1);
  CHECK(alone.at(16) == std::set<std::int64_t>{72, 112, 144, 176, 224, 288, 352, 448});
  // V3: 16 of 256 experts on each of 16 ranks, 8 for each token: 192 tokens.
  alone.clear();
  for (const CalibrationSetting& s : calibration_points(model_preset("deepseek-v3"), decode).settings)
    if (s.ops == std::vector<OpKind>{OpKind::MLP}) alone[s.ranks].insert(s.tokens);
  CHECK(alone.at(16) == std::set<std::int64_t>{224, 288, 352, 448});
}

TEST_CASE("calibration: of a list of configs only what they use is measured, and every split with its own ops") {
  const ModelShape shape = model_preset("deepseek-v3");
  CalibrationScope narrow = scope();
  // Decode of 16 ranks over lsa-ll; prompts of two ranks over lsa-ht with 8, of 16 ranks with 24 SMs.
  narrow.uses = {{false, 16, Transport::LsaLl, true, 0},
                 {true, 2, Transport::LsaHt, false, 8},
                 {true, 16, Transport::LsaHt, false, 24}};
  std::set<int> own_splits;
  for (const CalibrationSetting& s : calibration_points(shape, narrow).settings) {
    CAPTURE(setting_name(s));
    const bool attention_alone = s.ops == std::vector<OpKind>{OpKind::A1};
    if (attention_alone) continue;
    CHECK(s.transport == (s.prefill ? Transport::LsaHt : Transport::LsaLl));
    if (!s.prefill) CHECK(s.ranks == 16);
    if (!s.partition) continue;
    CHECK(s.comm_sms == (s.ranks == 2 ? 8 : 24));
    if (std::find(s.ops.begin(), s.ops.end(), OpKind::A0) != s.ops.end()) own_splits.insert(s.comm_sms);
  }
  CHECK(own_splits == std::set<int>{8, 24});
}

TEST_CASE("calibration: every op of the model is measured on whole and on split SMs, in both phases") {
  const CalibrationPoints points = calibration_points(model_preset("deepseek-v3"), scope());
  for (const bool prefill : {false, true}) {
    std::set<OpKind> whole, split, beside;
    for (const CalibrationSetting& s : points.settings) {
      if (s.prefill != prefill) continue;
      (s.partition ? split : whole).insert(s.ops.begin(), s.ops.end());
      beside.insert(s.beside.begin(), s.beside.end());
    }
    for (const OpKind kind : {OpKind::A0, OpKind::A1, OpKind::MLP, OpKind::S, OpKind::FFN, OpKind::D, OpKind::C}) {
      CAPTURE(op_name(kind));
      CHECK(whole.count(kind) == 1);
      CHECK(split.count(kind) == 1);
    }
    for (const OpKind kind : {OpKind::DSend, OpKind::DRecv, OpKind::CSend, OpKind::CRecv})
      CHECK(whole.count(kind) == 1);
    for (const OpKind kind : {OpKind::A0, OpKind::A1, OpKind::MLP, OpKind::S}) CHECK(beside.count(kind) == 1);
    CHECK(whole.count(OpKind::HEAD) == (prefill ? 0 : 1));
  }
}

TEST_CASE(
    "calibration: copy engines exchange tokens in halves and prompts as a whole, unless a config says otherwise") {
  CalibrationScope engines = scope();
  engines.transports = {Transport::CopyEngine};
  const ModelShape shape = model_preset("deepseek-v3");
  const auto is_whole = [](const CalibrationSetting& s) {
    return std::find(s.ops.begin(), s.ops.end(), OpKind::D) != s.ops.end();
  };
  for (const CalibrationSetting& s : calibration_points(shape, engines).settings) {
    CAPTURE(setting_name(s));
    CHECK(s.low_latency != s.prefill);
    CHECK(!s.partition);
    if (!s.beside.empty()) CHECK(setting_plan({shape, 132, {}}, s).find_op("D").has_value() == s.prefill);
  }
  engines.uses = {{true, 2, Transport::CopyEngine, true, 0}, {false, 2, Transport::CopyEngine, false, 0}};
  bool some = false;
  for (const CalibrationSetting& s : calibration_points(shape, engines).settings) {
    CAPTURE(setting_name(s));
    CHECK(s.low_latency == s.prefill);
    CHECK(!(is_whole(s) && s.low_latency));
    some = some || is_whole(s);
  }
  CHECK(some);
}

TEST_CASE("calibration: what runs beside an exchange is measured where a step has it") {
  CalibrationScope all = scope();
  all.transports = {Transport::LsaLl, Transport::LsaHt, Transport::CopyEngine};
  std::set<OpKind> unsplit, split, copies;
  for (const CalibrationSetting& s : calibration_points(model_preset("deepseek-v3"), all).settings) {
    CAPTURE(setting_name(s));
    if (s.transport == Transport::LsaLl) CHECK(s.beside.empty());
    std::set<OpKind>& of = s.transport == Transport::CopyEngine ? copies : s.partition ? split : unsplit;
    of.insert(s.beside.begin(), s.beside.end());
  }
  // An un-split server has its shared experts beside an exchange, a split one everything.
  CHECK(unsplit == std::set<OpKind>{OpKind::S});
  CHECK(split == std::set<OpKind>{OpKind::A0, OpKind::A1, OpKind::S, OpKind::MLP});
  CHECK(copies == split);
}

TEST_CASE("calibration: nccl is not asked to play ranks that are not there") {
  const CalibrationPoints points = calibration_points(model_preset("deepseek-v3"), scope());
  bool some = false;
  for (const CalibrationSetting& s : points.settings) {
    if (s.transport != Transport::Nccl) continue;
    some = true;
    CHECK(s.ranks == 2);
  }
  CHECK(some);
}

TEST_CASE("calibration: a model without shared experts or dense layers has no such points") {
  const CalibrationPoints points = calibration_points(model_preset("qwen3-30b-a3b"), scope());
  for (const CalibrationSetting& s : points.settings) {
    for (const OpKind kind : {OpKind::S, OpKind::FFN}) {
      CHECK(std::find(s.ops.begin(), s.ops.end(), kind) == s.ops.end());
      CHECK(std::find(s.beside.begin(), s.beside.end(), kind) == s.beside.end());
    }
  }
}

TEST_CASE("calibration: a setting's plan has the setting's batch and experts that divide over the ranks") {
  CalibrationPoints points;
  points.shape = replay_shape(model_preset("deepseek-v3"));
  CalibrationSetting s;
  s.ranks = 24;
  s.tokens = 96;
  s.context = 4096;
  s.transport = Transport::LsaHt;
  s.comm_sms = 16;
  s.partition = true;
  const Plan plan = setting_plan(points, s);
  CHECK(plan.sm == SmBudget{SmControl::Limit, 16, 116, 0});
  // Only split steps set SMs aside: each half is the setting's batch, and both halves' ops take turns.
  REQUIRE(plan.loads[0].ubatches.size() == 2);
  for (const UbatchLoad& half : plan.loads[0].ubatches) {
    CHECK(half.tokens() == 96);
    CHECK(half.seq_lens == std::vector<std::int32_t>(96, 4096));
  }
  CHECK(plan.loads[0].ubatches[1].token_begin == 96);
  CHECK(plan.threads.size() == 2);
  // 256 experts over 24 ranks: 264, 11 a rank.
  CHECK(plan.routing.redundant == 8);
  CHECK(Router(plan).placement(plan.shape.dense_layers).slots == 11);
  CHECK(linearise(plan, 0).problems.empty());
  s.partition = false;
  CHECK(setting_plan(points, s).loads[0].ubatches.size() == 1);
  CHECK(setting_plan(points, s).threads.size() == 1);
  // Prompts of 1024 tokens behind 512 that are there: three whole and a half.
  s.prefill = true;
  s.tokens = 3584;
  s.context = 1024;
  s.cached = 512;
  const UbatchLoad load = setting_plan(points, s).loads[0].ubatches[0];
  CHECK(load.query_start_loc == std::vector<std::int32_t>{0, 1024, 2048, 3072, 3584});
  CHECK(load.seq_lens == std::vector<std::int32_t>{1536, 1536, 1536, 1024});
}

TEST_CASE("calibration: small ops read weights from memory, not from the last time") {
  // DeepSeek-V2-Lite: A1's output projection is 2048 x 2048 bf16 and the gate 64 x 2048: 8.25 MiB a layer, so as many
  // layers as are allowed.
  CalibrationPoints points;
  CalibrationSetting s;
  s.tokens = 64;
  s.context = 1024;
  points.shape = replay_shape(model_preset("deepseek-v2-lite"));
  CHECK(setting_plan(points, s).shape.moe_layers() == 16);
  // DeepSeek-V3: shared experts are the smallest, 3 x 2048 x 7168 bf16 = 84 MiB: four layers are the least.
  points.shape = replay_shape(model_preset("deepseek-v3"));
  CHECK(setting_plan(points, s).shape.moe_layers() == 4);
  // Halves take turns on the same weights: half as many layers are as many ops.
  s.transport = Transport::LsaHt;
  s.low_latency = false;
  s.comm_sms = 16;
  s.partition = true;
  CHECK(setting_plan(points, s).shape.moe_layers() == 2);
  points.shape = replay_shape(model_preset("deepseek-v2-lite"));
  CHECK(setting_plan(points, s).shape.moe_layers() == 8);
}

TEST_CASE("calibration: kernels run fp8 in the routed experts and where rows are sent, bf16 elsewhere") {
  const ModelShape v3 = replay_shape(model_preset("deepseek-v3"));
  CHECK(v3.weights == Precision::Bf16);
  CHECK(v3.kv_cache == Precision::Bf16);
  CHECK(v3.expert_weights == Precision::Fp8);
  CHECK(v3.dispatch == Precision::Fp8);
  CHECK(v3.combine == Precision::Bf16);
  ModelShape fp4 = model_preset("deepseek-v3");
  fp4.expert_weights = fp4.dispatch = Precision::Fp4;
  CHECK(replay_shape(fp4).expert_weights == Precision::Bf16);
  CHECK(replay_shape(fp4).dispatch == Precision::Bf16);
  CHECK(replay_shape(model_preset("deepseek-v2-lite")).expert_weights == Precision::Bf16);
}

TEST_CASE("calibration: a malformed list names the place") {
  CalibrationPoints points = calibration_points(model_preset("deepseek-v3"), scope());
  Json json = points_to_json(points);
  json.set("settings", Json::array()).push(Json::object()).set("phase", "both");
  CHECK_THROWS_WITH_AS(points_from_json(JsonRef(wrap_json(json, "p.json"))),
                       "p.json: /settings/0/phase: unknown phase \"both\" (known: decode, prefill)", InputError);
}
