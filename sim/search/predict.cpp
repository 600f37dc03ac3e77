#include "sim/search/predict.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "sim/base/error.h"
#include "sim/batch/loads.h"
#include "sim/cost/analytical.h"
#include "sim/cost/cost_range.h"
#include "sim/cost/fixed.h"
#include "sim/cost/host_costs.h"
#include "sim/cost/profile.h"
#include "sim/engine/simulate.h"
#include "sim/plan/linearise.h"
#include "sim/sched/notation.h"
#include "sim/sched/schedule.h"

namespace dbo {
namespace {

/// Equal ranks share a load; a data-parallel rank is `tensor` GPUs.
void add_ranks(const Decision& decision, int tensor, ScheduleSpec& spec) {
  const StepLoads loads = make_loads(decision);
  for (std::size_t l = 0; l < loads.loads.size(); ++l) {
    Load load;
    for (const UbatchWork& u : loads.loads[l])
      load.ubatches.push_back({u.token_begin, u.token_end, u.padded, u.query_start_loc, u.seq_lens});
    spec.loads.push_back(std::move(load));
    std::vector<std::pair<int, int>> gpus;
    for (const auto& [first, end] : loads.ranks_of(static_cast<int>(l)))
      gpus.emplace_back(first * tensor, end * tensor);
    spec.classes.push_back({std::move(gpus), static_cast<int>(l)});
  }
}

/// Whether plans of the config's schedule copy the combined tokens: vLLM's do where the transport leaves them in its
/// own buffer; notation says so itself.
bool copies_combined(const Config& config) {
  if (config.overlap.low_latency) return false;
  if (config.overlap.notation) {
    const std::vector<NotedOp> order = parse_row(config.overlap.notation->order);
    return std::any_of(order.begin(), order.end(), [](const NotedOp& op) { return op.kind == OpKind::CCopy; });
  }
  return config.overlap.transport == Transport::Ht &&
         (config.overlap.schedule == "vllm-ht" || config.overlap.is_sequential());
}

}  // namespace

ScheduleSpec step_spec(const Config& config, const Decision& decision) {
  ScheduleSpec spec;
  spec.shape = config.model;
  spec.world = {config.cluster.gpus(), config.cluster.gpus_per_node};
  spec.execution = decision.graph.mode == GraphMode::None ? Execution::Eager : Execution::Graph;
  spec.transport = config.overlap.transport;
  spec.tensor_parallel = config.parallel.tensor;
  spec.sm = {config.overlap.sm_control, decision.sms.comm_kernel, decision.sms.compute, decision.sms.idle};
  spec.routing = config.routing;
  spec.ubatches = decision.ubatches;
  spec.embed_and_head = config.costs.source != CostSource::Fixed;
  add_ranks(decision, config.parallel.tensor, spec);
  return spec;
}

namespace {

Plan make_split_plan(const Config& config, const ScheduleSpec& spec) {
  if (!config.overlap.notation) return make_plan(config.overlap.schedule, spec);
  try {
    return make_plan(
        Notation{config.overlap.notation->compute, config.overlap.notation->comm, config.overlap.notation->order},
        spec);
  } catch (const InputError& error) {
    throw InputError(config.file, "/overlap/schedule", error.message());
  }
}

MachineSpec machine_of(const Config& config) {
  MachineSpec machine;
  machine.gpu = config.cluster.gpu;
  machine.fabric = config.cluster.fabric;
  machine.flows = config.network == NetworkModel::Flows;
  machine.stragglers = config.cluster.stragglers;
  machine.host = read_host_costs(JsonRef(wrap_json(config.execution.host, config.file)));
  return machine;
}

}  // namespace

namespace {

Profile whole_profile_of(const Config& config) {
  if (!config.costs.profile.empty()) return load_profile(config.profile_path());
  std::optional<Profile> profile = shipped_profile(config.cluster.gpu.name, config.model.name);
  if (profile) return std::move(*profile);
  std::string names;
  for (const std::string_view name : shipped_profile_names()) names += (names.empty() ? "" : ", ") + std::string(name);
  throw InputError(config.file, "/costs",
                   "no measured profile ships for " + config.cluster.gpu.name + " and " + config.model.name +
                       " (there are: " + names + "); name a \"file\" that dbo calibrate wrote, or use \"analytical\"");
}

}  // namespace

Profile profile_of(const Config& config) {
  Profile profile = whole_profile_of(config);
  keep_usable_clocks(profile);
  return profile;
}

std::vector<std::string> profile_warnings(const Config& config) {
  return config.costs.source == CostSource::Profile ? profile_of(config).warnings : std::vector<std::string>{};
}

std::vector<std::string> sm_warnings(const OverlapConfig& overlap) {
  const TransportInfo& transport = transport_info(overlap.transport);
  const std::string name(transport.name);
  // A config that does not say how many has the default, which is no wish.
  if (!transport.limits_sms && overlap.comm_sms != OverlapConfig{}.comm_sms)
    return {"/overlap/comm_sms " + std::to_string(overlap.comm_sms) + " has no effect: \"" + name +
            "\" sets no SMs aside for communication"};
  if (transport.sms_capped_by_created && overlap.comm_sms > overlap.comm_sms_created)
    return {"/overlap/comm_sms " + std::to_string(overlap.comm_sms) + " counts as " +
            std::to_string(overlap.comm_sms_created) + ": kernels of \"" + name +
            "\" take no more SMs than they were created with (/overlap/comm_sms_created)"};
  return {};
}

namespace {

/// How often a program computes what one cell of a cost table costs.
struct Computed {
  int layer_class = 0, ubatch = 0;
  OpId op = 0;
  std::int64_t times = 0;
};

std::vector<Computed> computed_by(const Plan& plan, int class_index, const CostTable& costs) {
  std::map<std::tuple<int, int, OpId>, std::int64_t> times;
  for (const LinearOp& op : linearise(plan, class_index).ops)
    if (is_compute(plan.op(op.op).kind)) ++times[{costs.layer_class(op.layer), op.ubatch, op.op}];
  std::vector<Computed> out;
  for (const auto& [cell, count] : times)
    out.push_back({std::get<0>(cell), std::get<1>(cell), std::get<2>(cell), count});
  return out;
}

}  // namespace

std::int64_t compute_ns(const Plan& plan, const CostTable& costs) {
  std::map<std::vector<int>, std::vector<Computed>> by_threads;  // classes of unequal loads run the same programs
  std::int64_t longest = 0;
  std::vector<bool> seen(static_cast<std::size_t>(costs.groups()), false);
  for (int rank = 0; rank < plan.world.ranks; ++rank) {
    const int group = costs.group_of_rank()[static_cast<std::size_t>(rank)];
    if (seen[static_cast<std::size_t>(group)]) continue;
    seen[static_cast<std::size_t>(group)] = true;
    const int class_index = plan.class_of(rank);
    const auto [known, fresh] = by_threads.try_emplace(plan.classes[static_cast<std::size_t>(class_index)].threads);
    if (fresh) known->second = computed_by(plan, class_index, costs);
    std::int64_t sum = 0;
    for (const Computed& c : known->second)
      sum += c.times * costs.at(group, c.layer_class, c.ubatch, c.op).time.count();
    longest = std::max(longest, sum);
  }
  return longest;
}

CostTable step_costs(const Config& config, const Plan& plan, bool split) {
  CostSources sources;
  return step_costs(config, plan, split, sources);
}

ClockedCosts open_costs(const Config& config, const Plan& plan, bool split, CostSources& sources) {
  switch (config.costs.source) {
    case CostSource::Fixed:
      return ClockedCosts(fixed_costs(
          plan, config.costs.fixed,
          {split ? 1 : config.overlap.ubatches, config.cluster.stragglers, config.network == NetworkModel::Flows}));
    case CostSource::Analytical:
      return ClockedCosts(analytical_costs(plan, machine_of(config), {}, &sources.loads));
    case CostSource::Profile:
      if (!sources.profile) sources.profile = profile_of(config);
      return clocked_costs(plan, *sources.profile, machine_of(config), &sources.loads);
  }
  throw InternalError("a cost source is missing");
}

namespace {

void check_range(const Config& config, const Plan& plan, const CostTable& costs) {
  const std::string beyond = beyond_range(plan, costs);
  if (!beyond.empty())
    throw InputError(config.file, config.costs.source == CostSource::Fixed ? "/costs" : "/workload",
                     "is more than can be simulated: " + beyond);
}

}  // namespace

void settle_costs(const Config& config, const Plan& plan, const CostSources& sources, ClockedCosts& costs) {
  PowerState power{1, sources.sm_mhz};
  costs.set(power);
  // A tenth more waiting shortens ops by a fortieth or so: each round leaves less than that of the error before.
  constexpr int kRounds = 2;
  for (int round = 0; round < kRounds && costs.has_clocks() && sources.sm_mhz <= 0; ++round) {
    const std::int64_t step = run_engine(plan, costs.table()).step() + sources.pause.count();
    power.duty =
        step > 0 ? std::min(static_cast<double>(compute_ns(plan, costs.table())) / static_cast<double>(step), 1.0) : 1;
    costs.set(power);
  }
  check_range(config, plan, costs.table());
}

CostTable step_costs(const Config& config, const Plan& plan, bool split, CostSources& sources) {
  ClockedCosts costs = open_costs(config, plan, split, sources);
  settle_costs(config, plan, sources, costs);
  return std::move(costs).take();
}

double Prediction::tokens_per_s_per_gpu(const StepResult& of) const {
  if (of.step_ns == 0) return 0;
  return static_cast<double>(tokens) * 1e9 / static_cast<double>(of.step_ns) / static_cast<double>(gpus);
}

Plan make_step_plan(const Config& config, const Decision& decision, bool baseline) {
  const ScheduleSpec spec = step_spec(config, decision);
  return decision.split && !baseline ? make_split_plan(config, spec)
                                     : make_baseline(spec, config.overlap.low_latency, copies_combined(config));
}

CostedPlan make_costed_plan(const Config& config, const Decision& decision, bool baseline) {
  CostSources sources;
  return make_costed_plan(config, decision, baseline, sources);
}

CostedPlan make_costed_plan(const Config& config, const Decision& decision, bool baseline, CostSources& sources) {
  Plan plan = make_step_plan(config, decision, baseline);
  CostTable costs = step_costs(config, plan, decision.split, sources);
  return {std::move(plan), std::move(costs)};
}

namespace {

/// Graphs a server with this config has captured: un-split ones, and split ones beside them or in their place.
std::pair<int, int> captured_graphs(const Config& config) {
  if (config.execution.mode != Execution::Graph || !transport_info(config.overlap.transport).capturable) return {0, 0};
  const bool splits = decide_settings(config).can_split();
  if (!config.execution.graph_sizes) return {1, splits ? 1 : 0};
  int split = 0;
  for (const std::int64_t size : *config.execution.graph_sizes)
    split += splits && size >= config.overlap.decode_token_threshold ? 1 : 0;
  const auto sizes = static_cast<int>(config.execution.graph_sizes->size());
  // vLLM's first runner drops the un-split graph of a size that has a split one.
  return {config.overlap.coordination == Coordination::V1 ? sizes - split : sizes, split};
}

}  // namespace

std::optional<MemoryUse> step_memory(const Config& config, const Plan& plan) {
  if (!config.model.has_dims()) return std::nullopt;
  const auto [graphs, twins] = captured_graphs(config);
  return memory_use(plan, config.cluster.gpu, graphs, twins);
}

namespace {

/// step_costs, and what other splits of the SMs would make of a layer.
CostTable split_costs(const Config& config, const Plan& plan, bool split, bool details, CostSources& sources,
                      std::optional<SmSplit>& sm_split) {
  if (!details || !split || config.costs.source != CostSource::Analytical || !has_sm_split(plan))
    return step_costs(config, plan, split, sources);
  const MachineSpec machine = machine_of(config);
  SmSplitProbe probe(plan, machine);
  CostTable costs = analytical_costs(plan, machine, probe.hook(), &sources.loads);
  check_range(config, plan, costs);
  sm_split = probe.take();
  return costs;
}

/// What the layout of the GPUs rests on; nothing with stated costs, which do not depend on it.
void say_layout(const Config& config, std::vector<std::string>& say) {
  const ClusterConfig& cluster = config.cluster;
  if (config.costs.source == CostSource::Fixed) return;
  const std::string per_node = std::to_string(cluster.gpus_per_node);
  if (cluster.layout_assumed)
    say.push_back("The config does not say how the " + std::to_string(cluster.gpus()) +
                  " GPUs are laid out: taken as " + std::to_string(cluster.nodes) +
                  (cluster.nodes == 1 ? " node of " : " nodes of ") + per_node + " " + cluster.gpu.name +
                  (cluster.nodes == 1 ? "." : ", joined by " + cluster.fabric.name + "."));
  if (cluster.gpus_per_node > cluster.link_domain())
    say.push_back("A node of " + per_node + " GPUs is taken as one scale-up domain, as the config says, though " +
                  (cluster.fabric.link_domain > 0 ? cluster.fabric.name : cluster.gpu.name) + " joins " +
                  std::to_string(cluster.link_domain()) + ".");
}

}  // namespace

namespace {

/// The first rank that stragglers keep waiting, or -1.
int first_waiting_rank(const ClusterConfig& cluster) {
  if (cluster.stragglers.empty()) return -1;
  const auto straggles = [&](int rank) {
    return std::any_of(cluster.stragglers.begin(), cluster.stragglers.end(), [&](const Straggler& s) {
      return std::find(s.ranks.begin(), s.ranks.end(), rank) != s.ranks.end();
    });
  };
  int rank = 0;
  while (rank < cluster.gpus() && straggles(rank)) ++rank;
  return rank < cluster.gpus() ? rank : -1;
}

}  // namespace

Prediction predict(const Config& config, const StepBatch& step, const StepOptions& options) {
  const DecideSettings settings = decide_settings(config);
  Decision decision = decide(step, settings);
  const Decision off = decide(step, without_dbo(settings));
  Plan plan = make_step_plan(config, decision, false);
  std::optional<SmSplit> sm_split;
  CostSources sources;  // both plans route the same tokens
  CostTable costs = split_costs(config, plan, decision.split, options.details, sources, sm_split);
  CostedPlan split{std::move(plan), std::move(costs)};
  CostedPlan baseline = make_costed_plan(config, off, true, sources);
  Prediction out{.decision = std::move(decision),
                 .split = std::move(split),
                 .baseline = std::move(baseline),
                 .gpus = config.cluster.gpus()};
  out.warnings = warnings_or_throw(check_plan(out.split.plan));
  out.waiting_rank = first_waiting_rank(config.cluster);
  StepOptions split_options = options;
  split_options.waiting_rank = out.waiting_rank;
  out.result = simulate_plan(out.split, split_options);
  StepOptions baseline_options = options;
  // A rank's number means the same in both; everything else of the baseline is only its step and trace.
  baseline_options.details = false;
  out.baseline_result = simulate_plan(out.baseline, baseline_options);
  out.sm_split = std::move(sm_split);
  for (const RankBatch& rank : step.ranks) out.tokens += rank.tokens();
  out.memory = step_memory(config, out.split.plan);
  out.assumptions = out.split.costs.assumptions;
  say_layout(config, out.assumptions);
  for (const std::string& warning : sm_warnings(config.overlap)) out.assumptions.push_back(warning + ".");
  if (!out.result.period.exact)
    out.assumptions.push_back(
        "no exact repeat of the steady state was found; period_ns is a mean, or the bound where that is more");
  return out;
}

}  // namespace dbo
