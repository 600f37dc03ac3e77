#include "sim/search/split_parts.h"

#include <algorithm>
#include <initializer_list>

#include "sim/base/error.h"
#include "sim/engine/bubbles.h"
#include "sim/engine/engine.h"
#include "sim/search/tune_point.h"

namespace dbo {
namespace {

class Parts {
 public:
  Parts(const Config& config, const Prediction& p)
      : config_(config), p_(p), split_(p.split.costs), unsplit_(p.baseline.costs), split_plan_(p.split.plan) {
    split_ns_ = p.result.step_ns;
    unsplit_ns_ = p.baseline_result.step_ns;
  }

  std::vector<SplitPart> make() {
    for_both([](CostTable& costs, const Plan&) { costs.machine = {}; });
    add("ops that slow each other side by side");
    for_both([](CostTable& costs, const Plan& plan) { costs = scaled_costs(costs, plan, {1, 0}); });
    add("waiting for communication");
    for_both(without_peers);
    add("waiting for ranks that join an exchange late");
    for_both(without_host);
    add("the host and gaps between kernels");
    if (give_back_sms()) add("SMs set aside for communication");
    read_weights_once();
    add("weights that each ubatch reads again");
    // Nothing is left but kernels one after the other: those of part of the batch against those of all of it.
    without_kinds({OpKind::MLP});
    add("experts' kernels for part of the batch");
    without_kinds({OpKind::A0, OpKind::A1});
    add("attention's kernels for part of the batch");
    without_kinds({OpKind::S});
    add("the shared expert's kernels for part of the batch");
    without_kinds({OpKind::FFN, OpKind::EMB, OpKind::HEAD});
    add("all other kernels for part of the batch");
    DBO_CHECK(split_ns_ == 0 && unsplit_ns_ == 0, "a step without ops takes no time");
    return std::move(parts_);
  }

 private:
  template <typename Change>
  void for_both(Change change) {
    change(split_, split_plan_);
    change(unsplit_, p_.baseline.plan);
  }

  template <typename Change>
  static void each_cost(CostTable& costs, const Plan& plan, Change change) {
    for (int g = 0; g < costs.groups(); ++g)
      for (int l = 0; l < costs.layer_classes(); ++l)
        for (int u = 0; u < costs.ubatches(); ++u)
          for (OpId op = 0; op < plan.ops.size(); ++op) change(u, plan.ops[op], costs.at(g, l, u, op));
  }

  static void without_peers(CostTable& costs, const Plan& plan) {
    each_cost(costs, plan, [](int, const OpDef&, OpCost& cost) { cost.peers = {}; });
  }

  static void without_host(CostTable& costs, const Plan&) {
    costs.host = {};
    costs.host_blocks = false;
  }

  /// The part that the costs as they now are have lost.
  void add(std::string what) {
    const std::int64_t split = run_engine(split_plan_, split_).step();
    const std::int64_t unsplit = run_engine(p_.baseline.plan, unsplit_).step();
    const std::int64_t ns = (split_ns_ - split) - (unsplit_ns_ - unsplit);
    const bool changed = split != split_ns_ || unsplit != unsplit_ns_;
    split_ns_ = split;
    unsplit_ns_ = unsplit;
    if (changed) parts_.push_back({std::move(what), ns, split, unsplit});
  }

  /// Prices the split step's compute on all SMs. False where costs do not follow from SMs or none are set aside.
  bool give_back_sms() {
    if (config_.costs.source == CostSource::Fixed || split_plan_.sm.compute <= 0 ||
        split_plan_.sm.compute >= config_.cluster.gpu.sms)
      return false;
    Plan plan = split_plan_;
    plan.sm.compute = config_.cluster.gpu.sms;
    split_ = scaled_costs(step_costs(config_, plan, true), plan, {1, 0});
    split_.machine = {};
    without_peers(split_, plan);
    without_host(split_, plan);
    return true;
  }

  void without_kinds(std::initializer_list<OpKind> kinds) {
    for_both([&](CostTable& costs, const Plan& plan) {
      each_cost(costs, plan, [&](int, const OpDef& op, OpCost& cost) {
        if (std::find(kinds.begin(), kinds.end(), op.kind) != kinds.end()) cost.time = {};
      });
    });
  }

  void read_weights_once() {
    each_cost(split_, split_plan_, [&](int ubatch, const OpDef& op, OpCost& cost) {
      if (ubatch > 0) cost.time -= Ns{weight_read_ns(split_plan_, op, cost, p_.split.costs.machine)};
    });
  }

  const Config& config_;
  const Prediction& p_;
  CostTable split_, unsplit_;
  const Plan& split_plan_;
  std::int64_t split_ns_ = 0, unsplit_ns_ = 0;
  std::vector<SplitPart> parts_;
};

}  // namespace

std::vector<SplitPart> split_parts(const Config& config, const Prediction& prediction) {
  if (!prediction.decision.split) return {};
  return Parts(config, prediction).make();
}

}  // namespace dbo
