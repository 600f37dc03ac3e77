#include "sim/search/tune_point.h"

#include <algorithm>
#include <cmath>

#include "sim/base/error.h"
#include "sim/base/schedule_names.h"
#include "sim/engine/engine.h"

namespace dbo {
namespace {

bool same_batch(const TunePoint& a, const TunePoint& b) {
  return a.phase == b.phase && a.tokens == b.tokens && a.context == b.context && a.gpus == b.gpus;
}

/// Whether two points of one batch have the same costs for the same ops.
bool same_machine(const TunePoint& a, const TunePoint& b) {
  return same_batch(a, b) && a.transport == b.transport && a.ubatches == b.ubatches && a.sm_control == b.sm_control &&
         a.comm_sms == b.comm_sms;
}

}  // namespace

std::string_view status_name(TuneStatus status) {
  switch (status) {
    case TuneStatus::Ok:
      return "ok";
    case TuneStatus::NoMemory:
      return "no-memory";
    case TuneStatus::NotSplit:
      return "not-split";
    case TuneStatus::Unsound:
      return "unsound";
  }
  return "";
}

CostTable scaled_costs(const CostTable& costs, const Plan& plan, const CostScale& scale) {
  const auto scaled = [](Ns time, double factor) {
    return Ns{std::llround(static_cast<double>(time.count()) * factor)};
  };
  CostTable table = costs;
  for (int g = 0; g < table.groups(); ++g)
    for (int l = 0; l < table.layer_classes(); ++l)
      for (int u = 0; u < table.ubatches(); ++u)
        for (OpId op = 0; op < plan.ops.size(); ++op) {
          OpCost& cost = table.at(g, l, u, op);
          const double factor = is_comm(plan.ops[op].kind) ? scale.communication : scale.compute;
          cost.time = scaled(cost.time, factor);
          cost.wire = scaled(cost.wire, factor);
          cost.beside = scaled(cost.beside, factor);
          cost.notify = scaled(cost.notify, factor);
          for (Ns OpCost::*part : {&OpCost::for_peers, &OpCost::data_after, &OpCost::data_floor})
            cost.*part = scaled(cost.*part, factor);
          if (factor > 0) continue;
          cost.demand = {};
          cost.wire_traffic = {};
        }
  for (std::vector<PairFlow>& exchange : table.flows.exchanges)
    for (PairFlow& flow : exchange) flow.work = scaled(Ns{flow.work}, scale.communication).count();
  return table;
}

TuneEvaluator::TuneEvaluator(const Config& config) : base_(config), light_(config) {
  light_.workload.steps.clear();
}

Config TuneEvaluator::settings_of(const TunePoint& point) const {
  Config c = light_;
  if (point.gpus != base_.cluster.gpus()) {
    c.cluster.nodes = point.gpus / c.cluster.gpus_per_node;
    c.parallel.expert = point.gpus;
    c.parallel.data = point.gpus / c.parallel.tensor;
    // The fewest replicas that divide evenly, as when a config names none.
    c.parallel.redundant_experts = (point.gpus - c.model.moe.routed_experts % point.gpus) % point.gpus;
    c.routing.redundant = c.parallel.redundant_experts;
    for (Straggler& s : c.cluster.stragglers) std::erase_if(s.ranks, [&](int rank) { return rank >= point.gpus; });
    std::erase_if(c.cluster.stragglers, [](const Straggler& s) { return s.ranks.empty(); });
  }
  OverlapConfig& o = c.overlap;
  const ScheduleName& schedule = *find_schedule_name(point.schedule);
  const bool vllm_or_ours = base_.overlap.coordination != Coordination::Sglang;
  o.notation.reset();
  o.schedule = point.schedule;
  o.transport = point.transport;
  o.low_latency = schedule.schedule_class == TransportClass::Both
                      ? !serves(transport_info(point.transport), TransportClass::HighThroughput)
                      : schedule.schedule_class == TransportClass::LowLatency;
  o.coordination = schedule.sglang ? Coordination::Sglang
                   : vllm_or_ours  ? base_.overlap.coordination
                                   : Coordination::V1;
  // An un-split batch under fixed costs takes as long as the ubatches it is not split into.
  o.ubatches = point.split() ? point.ubatches : std::max(2, base_.overlap.ubatches);
  o.comm_sms = point.comm_sms;
  // Un-split kernels have the blocks they were created with; a config has to ask for some where none would be none.
  if (!point.split() && transport_info(point.transport).sms_as_asked)
    o.comm_sms = std::min(o.comm_sms_created, c.cluster.gpu.sms - 1);
  o.sm_control = point.sm_control;
  // Whether splitting pays is the question, so nothing is too small to be split.
  o.decode_token_threshold = o.prefill_token_threshold = o.ubatches;
  return c;
}

Config TuneEvaluator::config_of(const TunePoint& point) const {
  Config c = settings_of(point);
  c.workload = base_.workload;
  if (base_.workload.uniform) {
    c.workload.uniform = workload_of(point);
    c.workload.steps = {expand(*c.workload.uniform, c.parallel.data)};
  }
  return c;
}

UniformWorkload TuneEvaluator::workload_of(const TunePoint& point) const {
  UniformWorkload w = *base_.workload.uniform;
  w.phase = point.phase;
  w.context_tokens = point.context;
  switch (point.phase) {
    case Phase::Decode:
      w.decode_tokens = point.tokens;
      w.prefill_tokens = 0;
      break;
    case Phase::Prefill:
      w.decode_tokens = 0;
      w.prefill_tokens = point.tokens;
      break;
    case Phase::Mixed:
      w.prefill_tokens = point.tokens - w.decode_tokens;
      break;
  }
  if (w.decode_tokens % w.query_tokens != 0)
    throw InputError("a batch of " + std::to_string(w.decode_tokens) +
                     " decode tokens is no whole number of requests of " + std::to_string(w.query_tokens));
  if (w.context_tokens < (w.decode_tokens > 0 ? w.query_tokens : 1))
    throw InputError("a context of " + std::to_string(w.context_tokens) + " tokens is shorter than what is decoded");
  if (w.prefill_tokens < 0 || w.decode_tokens + w.prefill_tokens == 0)
    throw InputError("a batch of " + std::to_string(point.tokens) +
                     " tokens leaves no prompts beside the decode tokens");
  return w;
}

const StepBatch& TuneEvaluator::batch_of(const TunePoint& point) {
  if (!base_.workload.uniform) return base_.workload.steps.front();
  if (!has_batch_ || !same_batch(point, batch_point_)) {
    batch_ = expand(workload_of(point), point.gpus / base_.parallel.tensor);
    if (has_batch_ && point.gpus == batch_point_.gpus)
      sources_.loads.next_batch();
    else
      sources_.loads.clear();
    batch_point_ = point;
    has_batch_ = true;
  }
  return batch_;
}

std::int64_t TuneEvaluator::step_tokens(const TunePoint& point) {
  std::int64_t tokens = 0;
  for (const RankBatch& rank : batch_of(point).ranks) tokens += rank.tokens();
  return tokens;
}

const CostTable& TuneEvaluator::costs_of(const Config& config, const TunePoint& point, const Plan& plan) {
  if (!same_machine(point, costs_point_)) costs_.clear();
  costs_point_ = point;
  for (KeptCosts& kept : costs_) {
    if (kept.execution != plan.execution || kept.ops != plan.ops || kept.loads != plan.loads) continue;
    if (!kept.schedule.empty() && kept.schedule != point.schedule) {
      settle_costs(config, plan, sources_, kept.costs);
      kept.schedule = point.schedule;
    }
    return kept.costs.table();
  }
  ClockedCosts costs = open_costs(config, plan, point.split(), sources_);
  settle_costs(config, plan, sources_, costs);
  const std::string schedule = costs.table().sm_mhz > 0 ? point.schedule : std::string();
  costs_.push_back({plan.ops, plan.loads, plan.execution, schedule, std::move(costs)});
  return costs_.back().costs.table();
}

const std::string& TuneEvaluator::finding_of(const TunePoint& point, const Plan& plan) {
  // Launches and waits follow from these alone.
  const std::string key =
      point.schedule + "/" + std::to_string(point.ubatches) + "/" + std::string(transport_info(point.transport).name);
  const auto [entry, fresh] = findings_.try_emplace(key);
  if (fresh) {
    const PlanCheck check = check_plan(plan);
    if (check.stops()) entry->second = check.findings.front().code + ": " + check.findings.front().text;
  }
  return entry->second;
}

TuneResult TuneEvaluator::evaluate(const TunePoint& point, const CostScale& scale) {
  const Config config = settings_of(point);
  const StepBatch& batch = batch_of(point);
  const DecideSettings settings = decide_settings(config);
  decide(batch, point.split() ? settings : without_dbo(settings), decision_);
  TuneResult result;
  if (point.split() && !decision_.split) {
    result.status = TuneStatus::NotSplit;
    result.why = decision_.reason_text;
    return result;
  }
  const Plan plan = make_step_plan(config, decision_, !point.split());
  if (const std::string& finding = finding_of(point, plan); !finding.empty()) {
    result.status = TuneStatus::Unsound;
    result.why = finding;
    return result;
  }
  if (const auto memory = step_memory(config, plan)) {
    result.memory_bytes = memory->total_bytes();
    if (!memory->fits()) result.status = TuneStatus::NoMemory;
  }
  const CostTable& costs = costs_of(config, point, plan);
  if (scale.is_one()) {
    result.step_ns = run_engine(plan, costs).step();
  } else {
    result.step_ns = run_engine(plan, scaled_costs(costs, plan, scale)).step();
  }
  return result;
}

}  // namespace dbo
