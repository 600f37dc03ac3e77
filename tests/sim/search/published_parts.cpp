#include "tests/sim/search/published_parts.h"

#include <array>
#include <cmath>
#include <map>
#include <numeric>

#include "sim/base/error.h"
#include "sim/base/json_reader.h"
#include "sim/config/config.h"
#include "sim/engine/engine.h"
#include "sim/search/predict.h"

namespace dbo::published {
namespace {

constexpr std::array<const char*, 8> kParts = {"dispatch wait", "dispatch",  "combine wait", "combine",
                                               "routed GEMMs",  "attention", "other GEMMs",  "other kernels"};
enum Part { DispatchWait, Dispatch, CombineWait, Combine, RoutedGemm, Attention, OtherGemm, OtherKernels };

Part part_of(KernelWork::Kind kind) {
  using Kind = KernelWork::Kind;
  if (kind == Kind::GroupedGemm || kind == Kind::MaskedGemm) return RoutedGemm;
  if (kind == Kind::PrefillCore || kind == Kind::DecodeCore) return Attention;
  return kind == Kind::Gemm || kind == Kind::BatchedGemm ? OtherGemm : OtherKernels;
}

/// Seconds of an op by part, alone and beside communication.
struct Shares {
  std::array<double, kParts.size()> alone{}, beside{};
};

/// What each compute op of each rank is made of; attention and shared experts of all ranks are those of the first.
class KernelParts {
 public:
  KernelParts(const Plan& plan, const MachineSpec& machine) : rows_(static_cast<std::size_t>(plan.world.ranks)) {
    (void)analytical_costs(plan, machine, [&](const CostCell& cell, OpCost&) {
      if (cell.context == nullptr || !is_compute(cell.op->kind) || !cell.context->moe_layer) return;
      Shares& shares = shares_[{cell.op->kind, cell.op->kind == OpKind::MLP ? cell.rank : 0}];
      shares = {};
      for (const TimedKernel& kernel : timed_kernels(cell.op->kind, *cell.context, machine, cell.sms)) {
        shares.alone[part_of(kernel.work.kind)] += kernel.time.seconds;
        shares.beside[part_of(kernel.work.kind)] += kernel.time.beside_seconds;
      }
      if (cell.op->kind == OpKind::MLP)
        rows_[static_cast<std::size_t>(cell.rank)] =
            std::accumulate(cell.context->expert_rows.begin(), cell.context->expert_rows.end(), 0.0);
    });
    // Ranks that cost the same are asked about once.
    for (double& rows : rows_) rows = rows > 0 ? rows : rows_.front();
  }

  const Shares* find(OpKind kind, int rank) const {
    const auto found = shares_.find({kind, kind == OpKind::MLP ? rank : 0});
    return found == shares_.end() ? nullptr : &found->second;
  }
  /// The rank whose experts have most nearly `share` of the mean to do.
  int rank_with(double share) const {
    const double mean = std::accumulate(rows_.begin(), rows_.end(), 0.0) / static_cast<double>(rows_.size());
    int best = 0;
    for (std::size_t r = 1; r < rows_.size(); ++r)
      if (std::abs(rows_[r] - share * mean) < std::abs(rows_[static_cast<std::size_t>(best)] - share * mean))
        best = static_cast<int>(r);
    return best;
  }

 private:
  std::map<std::pair<OpKind, int>, Shares> shares_;
  std::vector<double> rows_;
};

/// `ns` of an op by part: its kernels lost what it lost between alone and beside.
void add_kernels(const Shares& shares, double ns, std::array<double, kParts.size()>& parts) {
  const double alone = std::accumulate(shares.alone.begin(), shares.alone.end(), 0.0),
               beside = std::accumulate(shares.beside.begin(), shares.beside.end(), 0.0);
  const double lost = beside > alone ? std::clamp((ns / 1e9 - alone) / (beside - alone), 0.0, 1.0) : 0;
  const double sum = alone + lost * (beside - alone);
  for (std::size_t p = 0; p < parts.size(); ++p)
    parts[p] += ns / 1000 * (shares.alone[p] + lost * (shares.beside[p] - shares.alone[p])) / sum;
}

/// A layer in the middle of the step: the mean of some, in us.
std::array<double, kParts.size()> predicted_parts(const Config& config, double rank_load) {
  const DecideSettings settings = decide_settings(config);
  const Plan plan = make_step_plan(config, decide(config.workload.steps.front(), settings), false);
  MachineSpec machine{.gpu = config.cluster.gpu, .fabric = config.cluster.fabric, .host = {}};
  const KernelParts kernels(plan, machine);
  const CostTable costs = step_costs(config, plan, plan_ubatches(plan) > 1);
  const int rank = kernels.rank_with(rank_load);
  EngineOptions options;
  options.record = {run_engine(plan, costs).folding.group_of_rank[static_cast<std::size_t>(rank)]};
  const EngineResult run = run_engine(plan, costs, options);
  const Linear& linear =
      run.linear[static_cast<std::size_t>(run.folding.groups[static_cast<std::size_t>(options.record[0])].class_index)];
  constexpr int kFirst = 20, kLast = 39;
  std::array<double, kParts.size()> parts{};
  for (std::size_t i = 0; i < linear.ops.size(); ++i) {
    const LinearOp& op = linear.ops[i];
    if (op.layer < kFirst || op.layer > kLast) continue;
    const OpTimes& t = run.times[0][i];
    const OpKind kind = plan.op(op.op).kind;
    if (is_collective(kind)) {
      parts[is_dispatch(kind) ? DispatchWait : CombineWait] += static_cast<double>(t.sent - t.start) / 1000;
      parts[is_dispatch(kind) ? Dispatch : Combine] += static_cast<double>(t.end - t.sent) / 1000;
    } else if (const Shares* shares = kernels.find(kind, rank); shares != nullptr && t.end > t.start) {
      add_kernels(*shares, static_cast<double>(t.end - t.start), parts);
    }
  }
  for (double& part : parts) part /= kLast - kFirst + 1;
  return parts;
}

}  // namespace

std::vector<PartRow> read_parts(const std::string& path) {
  ObjectReader file{JsonRef(load_json(path))};
  std::vector<PartRow> out;
  for (const JsonRef& ref : file.require("rows").items()) {
    ObjectReader row(ref);
    const auto listed = row.find("parts_us");
    if (!listed) continue;
    const auto load = row.find("rank_load");
    const auto predicted = predicted_parts(config_from_json(row.require("config")), load ? load->number(0, 10) : 1);
    const std::vector<JsonRef> values = listed->items();
    DBO_CHECK(values.size() == kParts.size(), "a published layer has every part");
    for (std::size_t p = 0; p < kParts.size(); ++p)
      out.push_back({row.require("name").string(), kParts[p], values[p].number(0, 1e6), predicted[p]});
  }
  return out;
}

}  // namespace dbo::published
