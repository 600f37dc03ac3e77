#include "tools/summary.h"

#include <fmt/format.h>

#include <algorithm>

#include "sim/batch/decision_json.h"
#include "sim/plan/plan_json.h"

namespace dbo {
namespace {

Json windows_json(const StepResult& result) {
  Json out = Json::array();
  for (const WindowShare& w : result.windows)
    out.push(Json(Json::Object{
        {"name", w.name}, {"planned", w.planned}, {"hidden_ns", w.hidden.count()}, {"exposed_ns", w.exposed.count()}}));
  return out;
}

Json bubble_json(const Plan& plan, LaneId lane, const char* during, std::string_view cause, std::int64_t ns) {
  return Json(Json::Object{{"lane", plan.lanes[lane]}, {"while", during}, {"cause", cause}, {"ns", ns}});
}

/// Idle time of the lanes, by cause.
Json idle_json(const Plan& plan, const std::vector<Bubble>& bubbles) {
  Json out = Json::array();
  for (const Bubble& b : bubbles) {
    Json& row = out.push(bubble_json(plan, b.lane, "idle", cause_name(b.cause), b.ns));
    if (b.rank >= 0) row.set("rank", b.rank);
  }
  return out;
}

/// Idle time of the lanes, then what the ops on them lose, each by cause.
Json bubbles_json(const Plan& plan, const StepResult& result) {
  Json out = idle_json(plan, result.bubbles);
  for (const Loss& l : result.losses) out.push(bubble_json(plan, l.lane, "busy", cause_name(l.cause), l.ns));
  return out;
}

Json lanes_json(const Plan& plan, const StepResult& result) {
  Json out = Json::object();
  for (std::size_t l = 0; l < plan.lanes.size(); ++l)
    out.set(plan.lanes[l], Json(Json::Object{{"busy_ns", result.lane_busy_ns[l]}}));
  return out;
}

const char* bound_name(BoundKind kind) {
  switch (kind) {
    case BoundKind::Compute:
      return "compute";
    case BoundKind::Communication:
      return "communication";
    case BoundKind::Chain:
      return "chain of one ubatch";
  }
  return "";
}

void add_result(Json& out, const Plan& plan, const StepResult& result) {
  const bool steady = result.period.layers > 0;
  out.set("period_ns", steady ? Json(result.period.period_ns) : Json());
  out.set("period_layers", steady ? Json(result.period.layers) : Json());
  out.set("cycle_ns", steady ? Json(result.period.cycle_ns) : Json());
  out.set("bound_ns", steady ? Json(result.bound.bound_ns) : Json());
  out.set("bound_by", steady ? Json(bound_name(result.bound.kind)) : Json());
  out.set("exposed_comm_ns", result.exposed_comm_ns);
  out.set("lanes", lanes_json(plan, result));
  out.set("windows", windows_json(result));
  out.set("bubbles", bubbles_json(plan, result));
}

Json memory_json(const Prediction& p) {
  if (!p.memory) return Json();
  const MemoryUse& m = *p.memory;
  return Json(Json::Object{{"weights_bytes", m.weights_bytes},
                           {"kv_cache_bytes", m.kv_cache_bytes},
                           {"exchange_bytes", m.exchange_bytes},
                           {"activation_bytes", m.activation_bytes},
                           {"graph_bytes", m.graph_bytes},
                           {"twin_bytes", m.twin_bytes},
                           {"total_bytes", m.total_bytes()},
                           {"hbm_bytes", m.hbm_bytes},
                           {"fits", m.fits()}});
}

std::string memory_line(const Prediction& p) {
  if (!p.memory) return "";
  const auto gib = [](std::int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); };
  const MemoryUse& m = *p.memory;
  return fmt::format(
      "memory        {:.1f} of {:.0f} GiB{}: weights {:.1f}, KV {:.1f}, all-to-all {:.1f}, activations {:.1f}, graphs "
      "{:.1f}\n",
      gib(m.total_bytes()), gib(m.hbm_bytes), m.fits() ? "" : ", DOES NOT FIT", gib(m.weights_bytes),
      gib(m.kv_cache_bytes), gib(m.exchange_bytes), gib(m.activation_bytes), gib(m.graph_bytes + m.twin_bytes));
}

Json strings(const std::vector<std::string>& list) {
  Json out = Json::array();
  for (const std::string& item : list) out.push(item);
  return out;
}

std::string describe(const UniformWorkload& w) {
  const std::string context = fmt::format("context {}", w.context_tokens);
  switch (w.phase) {
    case Phase::Decode:
      return fmt::format("decode of {} tokens a rank, {}", w.decode_tokens, context);
    case Phase::Prefill:
      return fmt::format("prefill of {} tokens a rank, {}", w.prefill_tokens, context);
    case Phase::Mixed:
      return fmt::format("{} decode and {} prefill tokens a rank, {}", w.decode_tokens, w.prefill_tokens, context);
  }
  return context;
}

std::string percent(std::int64_t part, std::int64_t whole) {
  if (whole == 0) return "-";
  return fmt::format("{:.0f} %", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
}

void append_windows(std::string& out, const StepResult& result) {
  if (result.windows.empty()) return;
  std::size_t width = 6;
  for (const WindowShare& w : result.windows) width = std::max(width, w.name.size());
  out += fmt::format("{:<{}}  planned     hidden    exposed  achieved\n", "window", width);
  for (const WindowShare& w : result.windows)
    out += fmt::format("{:<{}}  {:>7}  {:>9}  {:>9}  {:>8}\n", w.name, width, w.planned, ms_text(w.hidden.count()),
                       ms_text(w.exposed.count()), percent(w.hidden.count(), (w.hidden + w.exposed).count()));
}

void add_cause(std::string& causes, std::string_view cause, std::int64_t ns) {
  causes += fmt::format("{}{} {}", causes.empty() ? "" : ", ", cause, ms_text(ns));
}

std::string idle_text(const std::vector<Bubble>& bubbles, std::size_t lane) {
  std::string idle;
  for (const Bubble& b : bubbles) {
    if (b.lane != lane) continue;
    add_cause(idle, cause_name(b.cause), b.ns);
    if (b.rank >= 0) idle += fmt::format(" (rank {})", b.rank);
  }
  return idle;
}

void append_bubbles(std::string& out, const Plan& plan, const StepResult& result) {
  for (std::size_t lane = 0; lane < plan.lanes.size(); ++lane) {
    const std::string idle = idle_text(result.bubbles, lane);
    std::string lost;
    for (const Loss& l : result.losses)
      if (l.lane == lane) add_cause(lost, cause_name(l.cause), l.ns);
    if (!idle.empty()) out += fmt::format("idle {:<8} {}\n", plan.lanes[lane], idle);
    if (!lost.empty()) out += fmt::format("lost {:<8} {}\n", plan.lanes[lane], lost);
  }
}

/// A rank that stragglers keep waiting.
void append_waiting(std::string& out, const Plan& plan, const StepResult& result, int rank) {
  for (std::size_t lane = 0; lane < plan.lanes.size(); ++lane)
    if (const std::string idle = idle_text(result.waiting, lane); !idle.empty())
      out += fmt::format("rank {:<8} idle {}: {}\n", rank, plan.lanes[lane], idle);
}

void append_steady(std::string& out, const StepResult& result) {
  if (result.period.layers == 0) return;
  out += fmt::format("period        {} a MoE layer", ms_text(result.period.period_ns));
  if (result.period.layers > 1) out += fmt::format(" (repeats every {} layers)", result.period.layers);
  out += fmt::format("; no order can beat {} ({})\n", ms_text(result.bound.bound_ns), bound_name(result.bound.kind));
}

std::string decision_line(const Prediction& p) {
  const Decision& d = p.decision;
  std::string text = d.split ? fmt::format("split into {} ubatches", d.ubatches) : std::string("not split");
  text += fmt::format(" ({}: {})", reason_name(d.reason), d.reason_text);
  text += fmt::format("; graph {}", graph_mode_name(d.graph.mode));
  if (d.graph.size) text += fmt::format(" of {} tokens", *d.graph.size);
  return text;
}

}  // namespace

std::string ms_text(std::int64_t ns) {
  const double value = static_cast<double>(ns);
  if (ns >= 1000000) return fmt::format("{:.3f} ms", value / 1e6);
  if (ns >= 1000) return fmt::format("{:.1f} us", value / 1e3);
  return fmt::format("{} ns", ns);
}

namespace {

/// Work of a MoE layer by SMs of communication, where more of them gain nothing, and from where it can hide.
Json sm_split_json(const std::optional<SmSplit>& split) {
  if (!split) return {};
  const auto number = [](const std::optional<int>& sms) { return sms ? Json(*sms) : Json(); };
  Json points = Json::array();
  for (const SmSplitPoint& p : split->points)
    points.push(Json(Json::Object{{"comm_sms", p.comm_sms}, {"comm_ns", p.comm_ns}, {"compute_ns", p.compute_ns}}));
  Json out = Json::object();
  out.set("knee_comm_sms", number(split->knee()));
  out.set("crossover_comm_sms", number(split->crossover()));
  out.set("points", std::move(points));
  return out;
}

std::string sm_split_line(const SmSplit& split) {
  std::string text = "SM split      ";
  if (const auto knee = split.knee()) text += fmt::format("a layer's communication gains little beyond {} SMs", *knee);
  if (const auto crossover = split.crossover()) {
    text += fmt::format("; from {} on it takes no longer than compute\n", *crossover);
  } else {
    text += "; compute is shorter with any number\n";
  }
  return text;
}

}  // namespace

Json summary_json(const Config&, const Prediction& p) {
  Json out = Json::object();
  out.set("plan_hash", plan_hash(p.split.plan));
  out.set("baseline_plan_hash", plan_hash(p.baseline.plan));
  out.set("step_ns", p.result.step_ns);
  out.set("baseline_step_ns", p.baseline_result.step_ns);
  out.set("speedup", p.result.step_ns > 0 ? Json(p.speedup()) : Json());
  add_result(out, p.split.plan, p.result);
  if (p.waiting_rank >= 0)
    out.set("waiting",
            Json(Json::Object{{"rank", p.waiting_rank}, {"bubbles", idle_json(p.split.plan, p.result.waiting)}}));
  out.set("tokens_per_s_per_gpu", p.tokens_per_s_per_gpu(p.result));
  out.set("baseline_tokens_per_s_per_gpu", p.tokens_per_s_per_gpu(p.baseline_result));
  out.set("memory", memory_json(p));
  out.set("sm_split", sm_split_json(p.sm_split));
  out.set("decision", decision_to_json(p.decision));
  out.set("assumptions", strings(p.assumptions));
  return out;
}

Json summary_json(const CostedPlan& costed, const StepResult& result) {
  Json out = Json::object();
  out.set("plan_hash", plan_hash(costed.plan));
  out.set("baseline_plan_hash", Json());
  out.set("step_ns", result.step_ns);
  out.set("baseline_step_ns", Json());
  out.set("speedup", Json());
  add_result(out, costed.plan, result);
  out.set("tokens_per_s_per_gpu", Json());
  out.set("baseline_tokens_per_s_per_gpu", Json());
  out.set("memory", Json());
  out.set("sm_split", Json());
  out.set("decision", Json());
  out.set("assumptions", strings(costed.costs.assumptions));
  return out;
}

std::string headline(const Config& config) {
  const ClusterConfig& c = config.cluster;
  std::string text = config.model.name.empty() ? fmt::format("{} layers", config.model.layers) : config.model.name;
  text += fmt::format(", {} x {}", c.gpus(), c.gpu.name);
  if (c.nodes > 1) text += fmt::format(" ({} nodes, {})", c.nodes, c.fabric.name);
  if (config.workload.uniform) text += ", " + describe(*config.workload.uniform);
  text += fmt::format("; {} over {}", config.overlap.notation ? "schedule in notation" : config.overlap.schedule,
                      transport_info(config.overlap.transport).name);
  return text;
}

std::string verdict(const Prediction& p) {
  if (p.result.step_ns == 0) return "the step takes no time";
  return fmt::format("step {}, {:.2f}x against un-split ({})", ms_text(p.result.step_ns), p.speedup(),
                     ms_text(p.baseline_result.step_ns));
}

std::string summary_table(const Config& config, const Prediction& p) {
  std::string out = headline(config) + "\n";
  out += fmt::format("decision      {}\n", decision_line(p));
  out +=
      fmt::format("step          {}   un-split {}   speed-up {}\n", ms_text(p.result.step_ns),
                  ms_text(p.baseline_result.step_ns), p.result.step_ns > 0 ? fmt::format("{:.3f}", p.speedup()) : "-");
  append_steady(out, p.result);
  out += fmt::format("exposed comm  {} ({} of the step)\n", ms_text(p.result.exposed_comm_ns),
                     percent(p.result.exposed_comm_ns, p.result.step_ns));
  out += fmt::format("tokens/s/GPU  {:.0f}   un-split {:.0f}\n", p.tokens_per_s_per_gpu(p.result),
                     p.tokens_per_s_per_gpu(p.baseline_result));
  out += memory_line(p);
  if (p.sm_split) out += sm_split_line(*p.sm_split);
  append_windows(out, p.result);
  append_bubbles(out, p.split.plan, p.result);
  append_waiting(out, p.split.plan, p.result, p.waiting_rank);
  return out;
}

std::string summary_table(const CostedPlan& costed, const StepResult& result) {
  std::string out = fmt::format("plan {}: {} ranks, {} threads\n", plan_hash(costed.plan), costed.plan.world.ranks,
                                costed.plan.threads.size());
  out += fmt::format("step          {}\n", ms_text(result.step_ns));
  append_steady(out, result);
  out += fmt::format("exposed comm  {} ({} of the step)\n", ms_text(result.exposed_comm_ns),
                     percent(result.exposed_comm_ns, result.step_ns));
  append_windows(out, result);
  append_bubbles(out, costed.plan, result);
  return out;
}

}  // namespace dbo
