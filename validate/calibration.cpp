#include "validate/calibration.h"

#include <algorithm>

#include "kernels/compute/layer.h"
#include "sim/base/error.h"
#include "sim/cost/machine.h"
#include "sim/cost/work.h"
#include "sim/plan/shape_json.h"
#include "sim/sched/schedule.h"

namespace dbo::validate {
namespace {

// What ops of one kind read in turn before they come back to the same weights: three times the L2 of an H200, so that
// nothing is found there.
constexpr std::int64_t kRingBytes = std::int64_t{180} << 20;
constexpr int kLeastLayers = 4, kMostLayers = 16;

// Between the sizes of exchanges, decode.
constexpr std::int64_t kBetween[] = {48, 72, 112, 144, 176, 224, 288, 352, 448};
// Rows of an expert below which its weights take longer to read than it takes to multiply.
constexpr std::int64_t kBoundRows = 96;

using Kinds = std::vector<OpKind>;

Kinds comm_ops(bool low_latency) {
  if (low_latency) return {OpKind::DSend, OpKind::DRecv, OpKind::CSend, OpKind::CRecv};
  return {OpKind::D, OpKind::C};
}

bool has_comm_sms(Transport transport) {
  return transport_info(transport).limits_sms;
}

/// Experts beyond the model's own that make them divide over the ranks.
int redundant_experts(const ModelShape& shape, int ranks) {
  return (ranks - shape.moe.routed_experts % ranks) % ranks;
}

/// MoE layers of the plan that is measured: enough for each kind of op to read its weights from memory.
int moe_layers(const ModelShape& shape) {
  const kernels::WeightLayout w = kernels::weight_layout(kernels::layer_dims(shape, 1), kernels::WeightSet::MoeLayer);
  const auto bytes = [&](std::initializer_list<kernels::Tensor> tensors) {
    std::int64_t sum = 0;
    for (const kernels::Tensor t : tensors) sum += w[t].count * 2;
    return sum;
  };
  using enum kernels::Tensor;
  std::int64_t least = std::min(bytes({QkvIn, QUp, KvUp}), bytes({AttentionOut, Gate}));
  if (shape.has_shared()) least = std::min(least, bytes({SharedUp, SharedDown}));
  const auto layers = static_cast<int>(ceil_div(kRingBytes, std::max<std::int64_t>(least, 1)));
  return std::clamp(layers, kLeastLayers, kMostLayers);
}

/// Adds settings in order, each only once.
class Grid {
 public:
  Grid(const ModelShape& shape, const CalibrationScope& scope) : shape_(shape), scope_(scope) {}

  void decode();
  void prefill();
  std::vector<CalibrationSetting> take() { return std::move(settings_); }

 private:
  void add(CalibrationSetting setting) {
    if (std::find(settings_.begin(), settings_.end(), setting) == settings_.end())
      settings_.push_back(std::move(setting));
  }
  /// Every op of one batch over transports and splits of the SMs.
  void batch(const CalibrationSetting& base);
  bool is_used(bool prefill, int ranks, Transport transport, bool low_latency, int comm_sms) const;
  /// One way of communicating: un-split, and every split of the SMs it knows.
  void exchange(const CalibrationSetting& plain, bool own);
  /// Ops that depend on the rank's own batch alone.
  Kinds own_ops(bool prefill) const {
    Kinds kinds = {OpKind::A0, OpKind::A1};
    if (shape_.has_shared()) kinds.push_back(OpKind::S);
    if (shape_.dense_layers > 0) kinds.push_back(OpKind::FFN);
    if (prefill) return kinds;
    // A prompt has logits of its last token alone: a profile knows both by their tokens, so one kind is measured.
    kinds.push_back(OpKind::EMB);
    kinds.push_back(OpKind::HEAD);
    return kinds;
  }
  Kinds beside_ops(bool own) const {
    Kinds kinds = {OpKind::MLP};
    if (!own) return kinds;
    kinds.push_back(OpKind::A0);
    kinds.push_back(OpKind::A1);
    if (shape_.has_shared()) kinds.push_back(OpKind::S);
    return kinds;
  }
  CalibrationSetting first_of(bool prefill) const;
  void experts_between(int ranks);
  /// Ops of a batch of prompts on all SMs, and of half of one on every split of the SMs.
  void own_alone(std::int64_t tokens);
  void split_own(std::int64_t tokens);
  static void append(Kinds& to, const Kinds& from) { to.insert(to.end(), from.begin(), from.end()); }

  const ModelShape& shape_;
  const CalibrationScope& scope_;
  std::vector<CalibrationSetting> settings_;
  /// What ops of the rank's own batch were measured beside, in this batch: SMs left to them, and whole exchanges'.
  std::vector<int> own_splits_;
};

bool Grid::is_used(bool prefill, int ranks, Transport transport, bool low_latency, int comm_sms) const {
  const TransportClass known = transport_info(transport).transport_class;
  if (low_latency && known == TransportClass::HighThroughput) return false;
  if (!low_latency && known == TransportClass::LowLatency) return false;
  // Who does not say exchanges prompts as a whole, and tokens in halves where that is possible.
  if (scope_.uses.empty()) return known != TransportClass::Both || low_latency != prefill;
  return std::any_of(scope_.uses.begin(), scope_.uses.end(), [&](const CalibrationUse& use) {
    return use.prefill == prefill && use.ranks == ranks && use.transport == transport &&
           use.low_latency == low_latency && (comm_sms == 0 || use.comm_sms == comm_sms);
  });
}

void Grid::exchange(const CalibrationSetting& plain, bool own) {
  const bool splits = has_comm_sms(plain.transport);
  const auto is_fresh = [&](int compute_sms) {
    const bool fresh = std::find(own_splits_.begin(), own_splits_.end(), compute_sms) == own_splits_.end();
    if (fresh) own_splits_.push_back(compute_sms);
    return fresh;
  };
  CalibrationSetting s = plain;
  append(s.ops, own ? own_ops(plain.prefill) : Kinds{});
  // The un-split server's own block count: its shared experts run beside the exchange, on all SMs. Copy engines leave
  // all SMs to everything, split or not.
  if (splits) s.comm_sms = kDefaultCommSms;
  if (plain.transport == Transport::CopyEngine) s.beside = beside_ops(is_fresh(scope_.gpu_sms));
  if (!plain.low_latency && splits && shape_.has_shared() && !scope_.quick) s.beside = {OpKind::S};
  add(s);
  if (!splits) return;
  // Then every split, with its ops on the SMs that remain.
  for (const int comm : scope_.comm_sms) {
    if (!is_used(plain.prefill, plain.ranks, plain.transport, plain.low_latency, comm)) continue;
    const bool fresh = is_fresh(scope_.gpu_sms - comm);
    CalibrationSetting split = plain;
    split.partition = true;
    split.comm_sms = comm;
    append(split.ops, fresh ? own_ops(plain.prefill) : Kinds{});
    std::erase(split.ops, OpKind::EMB);
    if (fresh || !scope_.quick) split.beside = beside_ops(fresh);
    add(split);
  }
}

void Grid::batch(const CalibrationSetting& base) {
  // Ops of the rank's own batch are the same for all ranks and transports: measured with the first, and with the first
  // of every split of the SMs.
  bool own = true;
  own_splits_.clear();
  for (const int ranks : scope_.ranks) {
    for (const Transport transport : scope_.transports) {
      // NCCL's ranks cannot be played by others.
      if (transport == Transport::Nccl && ranks > scope_.gpus) continue;
      for (const bool low_latency : {true, false}) {
        if (!is_used(base.prefill, ranks, transport, low_latency, 0)) continue;
        CalibrationSetting plain = base;
        plain.ranks = ranks;
        plain.transport = transport;
        plain.low_latency = low_latency;
        plain.ops = comm_ops(low_latency);
        plain.ops.push_back(OpKind::MLP);
        exchange(plain, own);
        own = false;
      }
    }
  }
}

/// With whom a rank exchanges does not matter to its own ops: as the first setting of the phase does.
CalibrationSetting Grid::first_of(bool prefill) const {
  const auto first = std::find_if(settings_.begin(), settings_.end(),
                                  [&](const CalibrationSetting& s) { return s.prefill == prefill; });
  CalibrationSetting own = *first;
  own.beside.clear();
  return own;
}

void Grid::decode() {
  const std::vector<std::int64_t> tokens = scope_.quick
                                               ? std::vector<std::int64_t>{64, 128, 256}
                                               : std::vector<std::int64_t>{64, 128, 256, 32, 512, 96, 192, 384, 16};
  const std::vector<std::int64_t> contexts =
      scope_.quick ? std::vector<std::int64_t>{4096} : std::vector<std::int64_t>{1024, 8192};
  for (const std::int64_t t : tokens) {
    CalibrationSetting base;
    base.tokens = t;
    base.context = 4096;
    batch(base);
    if (settings_.empty()) return;
    for (const std::int64_t context : contexts) {
      if (context == base.context) continue;
      CalibrationSetting attention = first_of(false);
      attention.tokens = t;
      attention.context = context;
      attention.ops = {OpKind::A1};
      add(attention);
    }
  }
  if (scope_.quick) return;
  // Dense products pick other kernels from one size to the next, just above 64 rows most of all: ops of the rank's own
  // batch on a finer grid.
  for (const std::int64_t t : kBetween) {
    CalibrationSetting own = first_of(false);
    own.tokens = t;
    own.ops = own_ops(false);
    own.ops.push_back(OpKind::MLP);
    add(own);
  }
  for (const int ranks : scope_.ranks) experts_between(ranks);
}

/// Experts of other ranks than those of the finer grid have other numbers of rows: above what their weights take to
/// read, a tile of rows more shows.
void Grid::experts_between(int ranks) {
  const auto some = std::find_if(settings_.begin(), settings_.end(), [&](const CalibrationSetting& s) {
    return !s.prefill && s.ranks == ranks && s.low_latency && !s.partition;
  });
  if (some == settings_.end() || ranks == first_of(false).ranks) return;
  CalibrationSetting experts = *some;
  experts.beside.clear();
  experts.ops = {OpKind::MLP};
  const int here = (shape_.moe.routed_experts + redundant_experts(shape_, ranks)) / ranks;
  for (const std::int64_t t : kBetween) {
    experts.tokens = t;
    if (t * shape_.moe.top_k >= kBoundRows * here) add(experts);
  }
}

void Grid::prefill() {
  const std::vector<std::int64_t> tokens =
      scope_.quick ? std::vector<std::int64_t>{1024, 4096} : std::vector<std::int64_t>{1024, 4096, 2048, 8192, 512};
  for (const std::int64_t t : tokens) {
    CalibrationSetting base;
    base.prefill = true;
    base.tokens = t;
    base.context = std::min<std::int64_t>(t, 1024);
    batch(base);
    if (settings_.empty() || !settings_.back().prefill) return;
    // Long prompts, and the later half of one that was cut in two.
    CalibrationSetting attention = first_of(true);
    attention.tokens = t;
    attention.ops = {OpKind::A1};
    if (t > 1024) {
      attention.context = t;
      add(attention);
    }
    if (!scope_.quick && t <= 4096) {
      attention.context = attention.cached = t;
      add(attention);
    }
  }
  if (scope_.quick) return;
  // On fewer SMs the steps between whole waves of tiles are at other sizes: a finer grid of its own. Below 1024 tokens,
  // where experts have few rows each, it bends most.
  for (const std::int64_t t : {1280, 2560, 5120}) own_alone(t);
  for (const std::int64_t t : {1408, 2816}) split_own(t);
  for (const std::int64_t t : {896, 640}) {
    own_alone(t);
    split_own(t);
  }
}

void Grid::own_alone(std::int64_t tokens) {
  CalibrationSetting own = first_of(true);
  own.tokens = tokens;
  own.context = std::min<std::int64_t>(tokens, 1024);
  own.ops = own_ops(true);
  own.ops.push_back(OpKind::MLP);
  add(own);
}

void Grid::split_own(std::int64_t tokens) {
  for (const int comm : scope_.comm_sms) {
    const auto split = std::find_if(settings_.begin(), settings_.end(), [&](const CalibrationSetting& s) {
      return s.prefill && s.partition && s.comm_sms == comm;
    });
    if (split == settings_.end()) continue;
    CalibrationSetting own = *split;
    own.tokens = tokens;
    own.context = std::min<std::int64_t>(tokens, 1024);
    own.ops = own_ops(true);
    own.ops.push_back(OpKind::MLP);
    own.beside.clear();
    add(own);
  }
}

/// `ubatches` with the setting's batch each.
Load setting_load(const CalibrationSetting& s, int ubatches) {
  UbatchLoad load;
  load.token_end = load.padded = s.tokens;
  load.query_start_loc = {0};
  for (std::int64_t left = s.tokens; left > 0;) {
    const std::int64_t query = s.prefill ? std::min(left, s.context) : 1;
    left -= query;
    load.query_start_loc.push_back(static_cast<std::int32_t>(s.tokens - left));
    load.seq_lens.push_back(static_cast<std::int32_t>(s.prefill ? s.cached + query : s.context));
  }
  Load out;
  for (int u = 0; u < ubatches; ++u) {
    out.ubatches.push_back(load);
    load.token_begin += s.tokens;
    load.token_end += s.tokens;
  }
  return out;
}

}  // namespace

CalibrationScope scope_of(const std::vector<Config>& configs, int gpus) {
  if (configs.empty()) throw InputError("no config says what to calibrate for");
  CalibrationScope scope;
  scope.gpus = gpus;
  scope.gpu_sms = configs.front().cluster.gpu.sms;
  scope.decode = scope.prefill = false;
  const auto add = [](auto& list, auto value) {
    if (std::find(list.begin(), list.end(), value) == list.end()) list.push_back(value);
  };
  for (const Config& config : configs) {
    if (config.model.name != configs.front().model.name)
      throw InputError(config.file, "/model",
                       "a profile is of one model: this is " + config.model.name + ", " + configs.front().file +
                           " has " + configs.front().model.name);
    add(scope.ranks, config.cluster.gpus());
    add(scope.transports, config.overlap.transport);
    if (has_comm_sms(config.overlap.transport)) add(scope.comm_sms, config.overlap.comm_sms);
    const int comm = has_comm_sms(config.overlap.transport) ? config.overlap.comm_sms : 0;
    for (const StepBatch& step : config.workload.steps) {
      for (const RankBatch& rank : step.ranks) {
        for (const Request& request : rank.requests) {
          const bool prefill = request.query > kDecodeQueries;
          (prefill ? scope.prefill : scope.decode) = true;
          add(scope.uses, CalibrationUse{prefill, config.cluster.gpus(), config.overlap.transport,
                                         config.overlap.low_latency, comm});
        }
      }
    }
  }
  return scope;
}

ModelShape replay_shape(ModelShape shape) {
  shape.weights = shape.kv_cache = shape.combine = Precision::Bf16;
  for (Precision* const p : {&shape.expert_weights, &shape.dispatch}) {
    if (*p != Precision::Fp8) *p = Precision::Bf16;
  }
  return shape;
}

CalibrationPoints calibration_points(const ModelShape& shape, const CalibrationScope& scope) {
  DBO_CHECK(!scope.ranks.empty() && !scope.transports.empty(), "a calibration needs ranks and transports");
  CalibrationPoints points;
  points.shape = replay_shape(shape);
  points.gpu_sms = scope.gpu_sms;
  Grid grid(points.shape, scope);
  if (scope.decode) grid.decode();
  if (scope.prefill) grid.prefill();
  points.settings = grid.take();
  return points;
}

Plan setting_plan(const CalibrationPoints& points, const CalibrationSetting& s) {
  ScheduleSpec spec;
  spec.shape = points.shape;
  spec.shape.dense_layers = std::min(points.shape.dense_layers, 2);
  // Two halves run twice as many ops on the same weights.
  const int layers = s.partition ? std::max(moe_layers(points.shape) / 2, 2) : moe_layers(points.shape);
  spec.shape.layers = spec.shape.dense_layers + layers * points.shape.moe_period;
  spec.world = {s.ranks, s.ranks};
  spec.execution = Execution::Graph;
  spec.transport = s.transport;
  spec.sm = {SmControl::Limit, s.comm_sms, s.partition ? points.gpu_sms - s.comm_sms : points.gpu_sms, 0};
  spec.routing.redundant = redundant_experts(points.shape, s.ranks);
  // SMs are set aside in split steps alone: there the other half's data passes through the caches between two ops.
  spec.ubatches = s.partition ? 2 : 1;
  spec.loads = {setting_load(s, spec.ubatches)};
  spec.classes = {{{{0, s.ranks}}, 0}};
  return s.partition ? make_plan("vllm-ht", spec) : make_baseline(spec, s.low_latency, false);
}

std::string setting_name(const CalibrationSetting& s) {
  std::string text = s.prefill ? "prefill " : "decode ";
  text += std::to_string(s.tokens) + " x " + std::to_string(s.context);
  if (s.cached > 0) text += " behind " + std::to_string(s.cached);
  text += ", EP" + std::to_string(s.ranks) + ", " + std::string(transport_info(s.transport).name);
  if (s.comm_sms > 0) text += " " + std::to_string(s.comm_sms) + (s.partition ? " SMs set aside" : " SMs");
  return text;
}

Json points_to_json(const CalibrationPoints& points) {
  Json settings = Json::array();
  for (const CalibrationSetting& s : points.settings) {
    Json one = Json::object();
    one.set("phase", s.prefill ? "prefill" : "decode");
    one.set("ranks", s.ranks);
    one.set("tokens", s.tokens);
    one.set("context", s.context);
    if (s.cached > 0) one.set("cached", s.cached);
    one.set("transport", transport_info(s.transport).name);
    one.set("low_latency", s.low_latency);
    one.set("comm_sms", s.comm_sms);
    one.set("partition", s.partition);
    Json& ops = one.set("ops", Json::array());
    for (const OpKind kind : s.ops) ops.push(op_name(kind));
    Json& beside = one.set("beside", Json::array());
    for (const OpKind kind : s.beside) beside.push(op_name(kind));
    settings.push(std::move(one));
  }
  Json json = Json::object();
  json.set("format", 1);
  json.set("shape", shape_to_json(points.shape));
  json.set("gpu_sms", points.gpu_sms);
  json.set("settings", std::move(settings));
  return json;
}

namespace {

OpKind read_kind(const JsonRef& ref) {
  std::vector<std::string_view> names;
  for (int kind = 0; kind < kOpKinds; ++kind) names.push_back(op_name(static_cast<OpKind>(kind)));
  return static_cast<OpKind>(ref.one_of(names, "op"));
}

CalibrationSetting read_setting(const JsonRef& ref) {
  ObjectReader reader(ref, "an object that describes a setting");
  CalibrationSetting s;
  s.prefill = reader.require("phase").one_of({"decode", "prefill"}, "phase") == 1;
  s.ranks = static_cast<int>(reader.require("ranks").integer(1, 4096));
  s.tokens = reader.require("tokens").integer(1, 1 << 20);
  s.context = reader.require("context").integer(1, 1 << 24);
  if (const auto cached = reader.find("cached")) s.cached = cached->integer(0, 1 << 24);
  s.transport = transports()[reader.require("transport").one_of(transport_names(), "transport")].id;
  s.low_latency = reader.require("low_latency").boolean();
  s.comm_sms = static_cast<int>(reader.require("comm_sms").integer(0, 1 << 16));
  s.partition = reader.require("partition").boolean();
  for (const JsonRef& op : reader.require("ops").items()) s.ops.push_back(read_kind(op));
  for (const JsonRef& op : reader.require("beside").items()) s.beside.push_back(read_kind(op));
  reader.done();
  return s;
}

}  // namespace

CalibrationPoints points_from_json(const JsonRef& ref) {
  ObjectReader reader(ref, "a list of measurement points");
  CalibrationPoints points;
  (void)reader.require("format").integer(1, 1);
  points.shape = shape_from_json(reader.require("shape"));
  points.gpu_sms = static_cast<int>(reader.require("gpu_sms").integer(1, 1 << 16));
  for (const JsonRef& setting : reader.require("settings").items()) points.settings.push_back(read_setting(setting));
  reader.done();
  return points;
}

}  // namespace dbo::validate
