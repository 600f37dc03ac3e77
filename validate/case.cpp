#include "validate/case.h"

#include <algorithm>
#include <numeric>

#include "sim/base/error.h"
#include "sim/model/presets.h"
#include "sim/search/predict.h"
#include "validate/calibration.h"
#include "validate/calibration_result.h"

namespace dbo::validate {
namespace {

void check_config(const Config& config, const CaseOptions& options) {
  if (config.parallel.tensor > 1)
    throw InputError(config.file, "/parallel/tensor", "must be 1 to validate: the kernels know no tensor parallelism");
  if (config.workload.sequence)
    throw InputError(config.file, "/workload", "is a sequence of steps; validate one of them");
  if (!config.model.has_dims())
    throw InputError(config.file, "/model", "has no dimensions: there is nothing to replay");
  if (!config.cluster.stragglers.empty())
    throw InputError(config.file, "/cluster/stragglers",
                     "must be left out to validate: a replay cannot make a GPU slower than it is");
  const int ranks = config.cluster.gpus();
  if (options.gpus > ranks)
    throw InputError(config.file, "/parallel",
                     "has " + std::to_string(ranks) + " ranks, asked for " + std::to_string(options.gpus) + " GPUs");
  if (options.gpus == ranks) return;
  if (config.emulate == Emulate::Off)
    throw InputError(
        config.file, "/emulate",
        "is \"off\", but there are " + std::to_string(options.gpus) + " GPUs for " + std::to_string(ranks) + " ranks");
  if (config.overlap.transport == Transport::Nccl)
    throw InputError(
        config.file, "/overlap/transport",
        "\"nccl\" needs a GPU for each of the " + std::to_string(ranks) + " ranks: its peers cannot be played");
}

/// Ours in the place of a transport that is simulated only.
void replace_transport(ValidationCase& out, Config& config) {
  const TransportInfo& wanted = transport_info(config.overlap.transport);
  if (!wanted.simulated_only) return;
  config.overlap.transport = config.overlap.low_latency ? Transport::LsaLl : Transport::LsaHt;
  out.notes.push_back("\"" + std::string(wanted.name) + "\" is simulated only: predicted and replayed with \"" +
                      std::string(transport_info(config.overlap.transport).name) + "\" in its place");
}

/// What a rank's peers and wires are replaced by, and what is said about it.
void note_emulation(ValidationCase& out) {
  if (!out.emulated) return;
  const std::string gpus = out.gpus == 1 ? "this GPU" : "the next GPU";
  out.notes.push_back("rank 0 of " + std::to_string(out.config.cluster.gpus()) + " is replayed; " + gpus +
                      " plays its peers: what it sends to a rank comes back as what that rank sends");
  if (out.config.routing.kind != RoutingKind::Balanced)
    out.notes.emplace_back(
        "routing is not balanced: rank 0's experts get the rows that its own tokens pick, not those of "
        "all ranks, and no fuller rank is waited for");
  out.notes.emplace_back("wires take the time the cost model gives " + out.config.cluster.fabric.name +
                         ": a receive, or a comm kernel, holds that long");
}

/// With played peers wires are those of the cost model, by construction on both sides, and every rank is as the first,
/// which is the one that is replayed: nobody is waited for, whatever the plan gives the others to do.
CostTable replay_costs(const Config& config, const Plan& plan, bool split, bool emulated, CostSources& sources) {
  CostTable costs = step_costs(config, plan, split, sources);
  if (!emulated) return costs;
  Config analytical = config;
  analytical.costs = CostConfig{};
  const CostTable wires = step_costs(analytical, plan, split);
  const int first = costs.group_of_rank().front(), first_wire = wires.group_of_rank().front();
  for (int layers = 0; layers < costs.layer_classes(); ++layers) {
    for (int ubatch = 0; ubatch < costs.ubatches(); ++ubatch) {
      for (OpId op = 0; op < plan.ops.size(); ++op) {
        OpCost& cost = costs.at(first, layers, ubatch, op);
        const OpCost& wire = wires.at(first_wire, layers, ubatch, op);
        if (is_recv(plan.ops[op].kind)) {
          cost.wire = wire.wire;
          // It lasts that long whatever else is on the links. Copy engines move its bytes meanwhile; low-latency
          // sends have moved them already.
          const bool copies = plan.transport == Transport::CopyEngine;
          cost.wire_traffic = {copies ? wire.wire_traffic.hbm_bytes : 0, 0, 0};
        }
        if (is_collective(plan.ops[op].kind)) {
          cost.time = std::max(cost.time, wire.time);
          cost.beside = std::max(cost.beside, wire.time);
        }
        for (int group = 0; group < costs.groups(); ++group) costs.at(group, layers, ubatch, op) = cost;
      }
    }
  }
  return costs;
}

std::vector<Ns> wires_of(const Config& config, const PredictedPlan& predicted, bool split) {
  Config analytical = config;
  analytical.costs = CostConfig{};
  const CostTable costs = step_costs(analytical, predicted.plan, split);
  const Linear linear = linearise(predicted.plan, predicted.plan.class_of(0));
  const int group = costs.group_of_rank().front();
  std::vector<Ns> wires;
  for (const LinearOp& op : linear.ops) {
    const OpKind kind = predicted.plan.op(op.op).kind;
    const OpCost& cost = costs.at(group, costs.layer_class(op.layer), op.ubatch, op.op);
    wires.push_back(is_recv(kind) ? cost.wire : is_collective(kind) ? cost.time : Ns{});
  }
  return wires;
}

}  // namespace

CostTable solo_costs(const PredictedPlan& predicted) {
  CostTable costs = predicted.costs;
  for (int group = 0; group < costs.groups(); ++group) {
    for (int layers = 0; layers < costs.layer_classes(); ++layers) {
      for (int ubatch = 0; ubatch < costs.ubatches(); ++ubatch) {
        for (OpId op = 0; op < predicted.plan.ops.size(); ++op) {
          OpCost& cost = costs.at(group, layers, ubatch, op);
          cost.beside = Ns{};
          cost.demand = {};
        }
      }
    }
  }
  return costs;
}

namespace {

/// Eagerly the host launches op by op, each op many kernels: what that takes on average over the plan's ops.
void set_host_launch(const Profile& profile, PredictedPlan& predicted) {
  const Linear linear = linearise(predicted.plan, predicted.plan.class_of(0));
  double sum = 0;
  int count = 0;
  for (const LinearOp& op : linear.ops) {
    const auto us = profile_host_launch(profile, predicted.plan.op(op.op).name);
    if (!us) continue;
    sum += *us;
    ++count;
  }
  if (count > 0) predicted.costs.host.launch = ns_from_us(sum / count);
}

/// Rows of experts in another precision are other kernels, and MLP is what most of a step's prediction hangs on.
void check_precision(const Profile& profile, const ModelShape& model) {
  if (model.moe.routed_experts == 0 || profile.shape.expert_weights == model.expert_weights) return;
  const std::string measured(precision_name(profile.shape.expert_weights)), run(precision_name(model.expert_weights));
  throw InputError(profile.file, "/shape/precision/expert_weights",
                   "was measured with " + measured + " experts, the replay runs " + run +
                       ": calibrate for those, or set /model/precision/expert_weights of the config to \"" + measured +
                       "\"");
}

}  // namespace

const OpCost& cost_of(const PredictedPlan& predicted, const Linear& linear, std::uint32_t plan_op) {
  const LinearOp& op = linear.ops[plan_op];
  const CostTable& costs = predicted.costs;
  return costs.at(costs.group_of_rank().front(), costs.layer_class(op.layer), op.ubatch, op.op);
}

namespace {

// Between two replays: clocks are read, ranks meet, a graph is launched.
constexpr Ns kReplayPause{200'000};

/// The clock at which steps of all plans run that take turns on one GPU: the power limit is on what they draw together.
double common_clock(const std::vector<PredictedWay>& ways) {
  double cycles = 0, all = 0;
  for (const PredictedWay& way : ways) {
    for (const PredictedPlan* plan : {&way.split, &way.unsplit}) {
      const auto step = static_cast<double>(plan->result.step_ns);
      if (plan->costs.sm_mhz <= 0) continue;  // no op of it was measured at two clocks
      cycles += step * plan->costs.sm_mhz;
      all += step;
    }
  }
  return all > 0 ? cycles / all : 0;
}

}  // namespace

ValidationCase make_case(Config config, const std::string& profile_path, const CaseOptions& options) {
  check_config(config, options);
  ValidationCase out;
  replace_transport(out, config);
  out.name = options.name.empty() ? config.file : options.name;
  const ModelShape replayed = replay_shape(config.model);
  if (!(replayed == config.model)) {
    out.notes.emplace_back(replayed.expert_weights == Precision::Fp8
                               ? "weights but the routed experts', cache and combine are bf16, as the kernels run them"
                               : "weights, cache and combine are bf16, as the kernels run them");
    config.model = replayed;
  }
  std::optional<Profile> profile;
  if (profile_path.empty()) {
    config.costs = CostConfig{};
    out.notes.emplace_back("no profile: predicted by the cost model alone, which was not fitted to this machine");
  } else {
    config.costs.source = CostSource::Profile;
    config.costs.profile = profile_path;
    // Relative to where the program runs, not to the config's folder.
    config.file = "validate";
    profile = profile_of(config);
    check_precision(*profile, config.model);
  }
  out.gpus = options.gpus;
  out.emulated = options.gpus < config.cluster.gpus();
  out.config = config;
  note_emulation(out);
  const StepBatch& step = only_step(config, "validate");
  const DecideSettings settings = decide_settings(config);
  out.decision = decide(step, settings);
  const Decision off = decide(step, without_dbo(settings));
  if (!out.decision.split) out.notes.push_back("the step is not split: " + out.decision.reason_text);
  StepOptions step_options;
  step_options.trace = true;
  for (int rank = 0; rank < out.ranks_replayed(); ++rank) step_options.trace_ranks.push_back(rank);
  const bool capturable = transport_info(config.overlap.transport).capturable;
  CostSources sources;
  sources.profile = profile;
  sources.pause = kReplayPause;
  sources.sm_mhz = options.sm_mhz;
  if (out.emulated) sources.loads.echo(0);
  const auto predict_ways = [&] {
    out.ways.clear();
    for (const bool graph : {true, false}) {
      if (graph ? !options.graph || !capturable : !options.eager) continue;
      const auto predict = [&](const Decision& decision, bool baseline) {
        Plan plan = make_step_plan(config, decision, baseline);
        plan.execution = graph ? Execution::Graph : Execution::Eager;
        CostTable costs = replay_costs(config, plan, decision.split && !baseline, out.emulated, sources);
        PredictedPlan predicted{std::move(plan), std::move(costs), {}, 0, {}};
        if (!graph && profile) set_host_launch(*profile, predicted);
        CostedPlan costed{predicted.plan, predicted.costs};
        predicted.result = simulate_plan(costed, step_options);
        predicted.alone_ns = run_engine(predicted.plan, solo_costs(predicted)).step();
        if (out.emulated) predicted.wires = wires_of(config, predicted, decision.split && !baseline);
        return predicted;
      };
      out.ways.push_back({graph, predict(out.decision, false), predict(off, true)});
    }
  };
  predict_ways();
  if (options.sm_mhz <= 0) {
    sources.sm_mhz = common_clock(out.ways);
    if (sources.sm_mhz > 0) predict_ways();
  }
  if (out.ways.empty())
    throw InputError(config.file, "/overlap/transport",
                     "cannot be part of a graph, and eager steps were not asked for");
  out.assumptions = out.ways.front().split.costs.assumptions;
  return out;
}

}  // namespace dbo::validate
