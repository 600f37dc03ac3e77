// dbo plan: a config's plan as notation, JSON or a graph.
#include <fmt/format.h>

#include "sim/base/error.h"
#include "sim/plan/linearise.h"
#include "sim/plan/plan_graph.h"
#include "sim/plan/plan_json.h"
#include "sim/sched/notation.h"
#include "sim/search/predict.h"
#include "tools/commands.h"

namespace dbo {
namespace {

Plan plan_of(const std::string& path) {
  const auto document = load_json(path, {.comments = true});
  if (looks_like_plan(document->root)) return plan_from_json(JsonRef(document));
  const Config config = config_from_json(JsonRef(document));
  const Decision decision = decide(only_step(config, "plan"), decide_settings(config));
  return make_costed_plan(config, decision, false).plan;
}

std::string row(const char* name, const std::string& text) {
  return text.empty() ? "" : fmt::format("{:<8} {}\n", name, text);
}

}  // namespace

int run_plan(const PlanOptions& options) {
  const Plan plan = plan_of(options.config);
  if (options.json) {
    fmt::print("{}", plan_text(plan));
  } else if (options.dot) {
    fmt::print("{}", layer_dot(plan));
  } else {
    const Notation notation = notation_of(plan);
    if (notation.order.empty())
      throw InputError("the plan repeats no MoE layer, so it has no steady period to print; use --json");
    fmt::print("{}{}{}", row("compute:", notation.compute), row("comm:", notation.comm), row("order:", notation.order));
    const Linear linear = linearise(plan, 0);
    fmt::print("# plan {}: {} ops a rank, {} host steps, {}\n", plan_hash(plan), linear.ops.size(), linear.host.size(),
               plan.execution == Execution::Graph ? "one graph" : "eager");
  }
  return 0;
}

}  // namespace dbo
