// A cost table from measured points: interpolation between them, the analytical shape beyond.
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "sim/base/error.h"
#include "sim/cost/profile.h"
#include "sim/cost/profile_points.h"
#include "sim/model/presets.h"

namespace dbo {
namespace {

class ProfileTable {
 public:
  ProfileTable(const Plan& plan, const Profile& profile, const MachineSpec& machine)
      : plan_(plan),
        profile_(profile),
        machine_(machine),
        pace_(machine.stragglers, plan.world.ranks, plan.tensor_parallel),
        points_(profile),
        relaxed_duty_(relaxed_duty(profile)),
        wires_differ_(profile.machine.nodes == 1 && machine.link_domain(plan.world) < plan.world.ranks) {}

  ClockedCosts build(RoutedLoads* loads);

 private:
  void adjust(const CostCell& cell, OpCost& cost);
  void adjust_compute(const CostCell& cell, OpCost& cost);
  void adjust_exchange(const CostCell& cell, OpCost& cost);
  /// Eagerly the kernels of an op follow each other at the gaps of eager launches; points are of graphs.
  Ns eager_gaps(const CostCell& cell) const;
  /// Of what computation loses beside comm kernels, the part that is left where those mostly wait for a slower fabric.
  double loss_share() const;
  /// The time at `at` from points, which off their range go on in proportion to `along`, times what `analytical` is of
  /// an even batch is, `even`.
  ClockedTime scaled(const std::vector<Measured>& points, const Place& at, const Shape& along, double even,
                     double analytical, std::string_view name, Innermost innermost = Innermost::Tokens);
  double clock_of(double tokens, bool prefill, int duty);
  /// At each place of `beside`, measured by `filter`: that time over the one alone at the same clock. None where it was
  /// not measured alone.
  const std::vector<Measured>& company_costs(const PointFilter& filter, const std::vector<Measured>& beside,
                                             const std::vector<Measured>& alone, bool clocks, Innermost innermost);
  OpContext context_at(const CostCell& cell, const Place& at, std::vector<double>& rows) const;
  const Exchange& exchange_at(int ranks, double tokens, bool inside);

  const Plan& plan_;
  const Profile& profile_;
  const MachineSpec& machine_;
  Pace pace_;
  PointSelections points_;
  std::vector<ClockedCost> clocked_;
  int relaxed_duty_;      ///< of points with pauses, in percent
  bool wires_differ_;     ///< the plan's ranks are further apart than those of the profile were
  Ns moving_{}, held_{};  ///< of all comm kernels: as measured, and with the fabric's wires
  std::set<std::string> missing_, beyond_;
  bool copies_slow_ = false;  ///< something was measured beside copy engines
  bool borrowed_ = false;     ///< MLP points are of another transport
  std::map<std::tuple<int, double, bool>, Exchange> exchanges_;
  std::map<PointFilter, std::vector<Measured>> company_costs_;
};

ClockedTime ProfileTable::scaled(const std::vector<Measured>& points, const Place& at, const Shape& along, double even,
                                 double analytical, std::string_view name, Innermost innermost) {
  bool beyond = false;
  const double measured = interpolate(points, at, along, beyond, innermost);
  if (beyond) beyond_.insert(std::string(name));
  const double mhz = interpolate_clock(points, at, innermost);
  return {even > 0 ? measured * (analytical / even) : measured, mhz};
}

/// The clock that computation of such a batch leaves a GPU that computes for that share of the time; 0: not known. Of a
/// batch on all SMs, also where some are set aside: measured without comm kernels on those, a GPU clocked higher than
/// it then ran with them.
double ProfileTable::clock_of(double tokens, bool prefill, int duty) {
  const PointFilter filter{
      .op = "A0", .phased = true, .prefill = prefill, .precision = plan_.shape.weights, .duty = duty};
  const std::vector<Measured>& points = points_.select(filter);
  return points.empty() ? 0 : interpolate_clock(points, {0, static_cast<double>(machine_.gpu.sms), 0, tokens});
}

const std::vector<Measured>& ProfileTable::company_costs(const PointFilter& filter, const std::vector<Measured>& beside,
                                                         const std::vector<Measured>& alone, bool clocks,
                                                         Innermost innermost) {
  const auto known = company_costs_.find(filter);
  if (known != company_costs_.end()) return known->second;
  std::vector<Measured>& costs = company_costs_[filter];
  PointFilter paused = filter;
  paused.beside = false;
  paused.company_sms = 0;
  paused.duty = relaxed_duty_;
  const std::vector<Measured>* relaxed = clocks ? &points_.select(paused) : nullptr;
  static const Shape kLevel = [](const Place&) { return 1.0; };
  for (const Measured& m : beside) {
    bool beyond = false;
    ClockCurve curve;
    curve.dense = {interpolate(alone, m.place, kLevel, beyond, innermost),
                   interpolate_clock(alone, m.place, innermost)};
    if (relaxed != nullptr)
      curve.relaxed = {interpolate(*relaxed, m.place, kLevel, beyond, innermost),
                       interpolate_clock(*relaxed, m.place, innermost)};
    const double base = m.mhz > 0 && curve.known() ? curve.at(m.mhz) : curve.dense.ns;
    if (base <= 0 || beyond) {
      costs.clear();
      return costs;
    }
    costs.push_back({m.place, m.ns / base, m.mhz});
  }
  return costs;
}

/// An even batch at `at` that is otherwise like the cell's: what a calibration measures.
OpContext ProfileTable::context_at(const CostCell& cell, const Place& at, std::vector<double>& rows) const {
  OpContext c = *cell.context;
  c.moe_layer = true;  // what is measured is a MoE layer
  const double tokens = at[3], context = std::max(at[2], 1.0);
  if (cell.op->kind == OpKind::MLP) {
    double sum = 0;
    for (const double r : cell.context->expert_rows) sum += r;
    rows.assign(static_cast<std::size_t>(std::max(at[0], 1.0)), tokens / std::max(at[0], 1.0));
    c.received = sum > 0 ? cell.context->received / sum * tokens : tokens;
    c.expert_rows = rows;
    return c;
  }
  const bool prefill = c.attention.prefill_tokens > c.attention.decode_tokens;
  c.tokens = tokens;
  c.share_tokens = tokens / c.tensor_parallel;
  AttentionLoad load;
  if (prefill) {
    load.prefill_requests = tokens / context;
    load.prefill_tokens = load.prefill_context = tokens;
    load.prefill_pairs = tokens * (context + 1) / 2;
  } else {
    load.decode_requests = load.decode_tokens = tokens;
    load.decode_pairs = load.decode_cache = tokens * context;
  }
  c.attention = load;
  if (c.shape->attention.index_top_k > 0) {
    const double seen = std::min<double>(context, c.shape->attention.index_top_k);
    c.sparse = {};
    c.sparse.decode_requests = c.sparse.decode_tokens = tokens;
    c.sparse.decode_pairs = prefill ? std::min(load.prefill_pairs, tokens * seen) : tokens * seen;
    c.sparse.decode_cache = prefill ? tokens : tokens * context;
  }
  return c;
}

/// `inside`: all ranks share fast links, as those of the profile did.
const Exchange& ProfileTable::exchange_at(int ranks, double tokens, bool inside) {
  const auto known = exchanges_.find({ranks, tokens, inside});
  if (known != exchanges_.end()) return known->second;
  Plan like;
  like.shape = plan_.shape;
  like.world = {.ranks = ranks, .ranks_per_node = std::min(ranks, plan_.world.ranks_per_node)};
  like.routing.redundant = (ranks - like.shape.moe.routed_experts % ranks) % ranks;
  const int domain = inside ? ranks : machine_.link_domain(like.world);
  const std::vector<TokenRange> ranges(static_cast<std::size_t>(ranks),
                                       TokenRange{0, static_cast<std::int64_t>(tokens + 0.5)});
  Exchange exchange = make_exchange(plan_.transport, plan_.shape, domain, Router(like).load(0, ranges, domain));
  return exchanges_.emplace(std::tuple{ranks, tokens, inside}, std::move(exchange)).first->second;
}

Ns to_ns(double ns) {
  return ns_from_us(ns / 1000);
}

void ProfileTable::adjust_compute(const CostCell& cell, OpCost& cost) {
  const OpContext& c = *cell.context;
  const bool mlp = cell.op->kind == OpKind::MLP;
  const bool attention = cell.op->kind == OpKind::A0 || cell.op->kind == OpKind::A1;
  const bool prefill = c.attention.prefill_tokens > c.attention.decode_tokens;
  double rows = 0;
  for (const double r : c.expert_rows) rows += r;
  const double queries = c.attention.tokens();
  const double pairs = c.attention.decode_pairs + c.attention.prefill_pairs;
  // A query of a prompt sees half of it on average.
  const double context = queries > 0 ? (prefill ? 2 * pairs / queries - 1 : pairs / queries) : 0;
  // A prompt has logits of its last token alone.
  const double tokens =
      cell.op->kind == OpKind::HEAD && prefill ? c.attention.decode_tokens + c.attention.prefill_requests : c.tokens;
  const bool sees_context = cell.op->kind == OpKind::A1;
  const Innermost innermost = sees_context && prefill ? Innermost::Context : Innermost::Tokens;
  const Place at = mlp ? Place{static_cast<double>(c.expert_rows.size()), static_cast<double>(cell.sms), 0, rows}
                       : Place{0, static_cast<double>(cell.sms), sees_context ? context : 0, tokens};
  if (at[3] <= 0) return;
  PointFilter filter{.op = op_name(cell.op->kind),
                     .phased = attention,
                     .prefill = prefill,
                     .precision = mlp ? plan_.shape.expert_weights : plan_.shape.weights};
  if (mlp) filter.transport = plan_.transport;
  const std::vector<Measured>* found = &points_.select(filter);
  if (mlp && found->empty()) {
    // Rows lie as a class of transports lays them: by expert, or by rank.
    filter.or_class = plan_.find_op("D") ? TransportClass::HighThroughput : TransportClass::LowLatency;
    found = &points_.select(filter);
    borrowed_ = borrowed_ || !found->empty();
  }
  const std::vector<Measured>& alone = *found;
  if (alone.empty()) {
    const bool other = std::any_of(profile_.points.begin(), profile_.points.end(),
                                   [&](const ProfilePoint& p) { return p.op == filter.op && p.beside.empty(); });
    missing_.insert(std::string(filter.op) +
                    (other && !mlp ? " in " + std::string(precision_name(filter.precision)) : ""));
    return;
  }
  std::vector<double> even;
  const auto price = [&](const Place& place) {
    return price_compute(cell.op->kind, context_at(cell, place, even), machine_, static_cast<int>(place[1]));
  };
  const OpCost analytical = cost, even_price = price(at);
  const auto count = [](Ns time) { return static_cast<double>(time.count()); };
  const Shape time_at = [&](const Place& p) { return count(price(p).time); };
  const Shape beside_at = [&](const Place& p) { return count(price(p).beside); };
  // On fewer SMs and beside communication less is measured than on the whole GPU: off the range of those points, a time
  // goes on as the whole GPU's measured ones do.
  filter.most_sms = true;
  const std::vector<Measured>& whole = points_.select(filter);
  filter.most_sms = false;
  const double most = whole.front().place[kSmLevel];
  const auto along_whole = [&](const Shape& shape) -> Shape {
    return [&, shape](const Place& p) {
      Place there = p;
      there[kSmLevel] = most;
      bool beyond = false;
      const double base = time_at(there), measured = interpolate(whole, there, time_at, beyond, innermost);
      return base > 0 ? measured * (shape(p) / base) : measured;
    };
  };
  // What was measured chose experts, which attention of a dense layer does not: that is taken off as it was priced. In
  // proportion, what else the measured time holds that no price knows would go with it.
  OpCost routed = analytical;
  if (sees_context && !c.moe_layer) {
    OpContext routing = c;
    routing.moe_layer = true;
    routed = price_compute(cell.op->kind, routing, machine_, cell.sms);
  }
  const double off = count(routed.time) - count(analytical.time);
  const auto measured = [&](const std::vector<Measured>& points) {
    ClockedTime time =
        scaled(points, at, along_whole(time_at), count(even_price.time), count(routed.time), filter.op, innermost);
    time.ns = std::max(time.ns - off, time.ns * count(analytical.time) / std::max(count(routed.time), 1.0));
    return time;
  };
  ClockedCost clocked;
  clocked.time = analytical.time;
  clocked.beside = analytical.beside;
  clocked.curve.dense = measured(alone);
  if (relaxed_duty_ < 100) {
    filter.duty = relaxed_duty_;
    const std::vector<Measured>& relaxed = points_.select(filter);
    filter.duty = 100;
    clocked.dense_mhz = clock_of(c.tokens, prefill, 100);
    clocked.relaxed_mhz = clock_of(c.tokens, prefill, relaxed_duty_);
    if (!relaxed.empty()) clocked.curve.relaxed = measured(relaxed);
  }
  filter.beside = true;
  filter.company_sms = plan_.sm.comm;
  // Low-latency kernels have sent before computation begins: what whole exchanges cost it does not hold.
  const bool moves = plan_.sm.comm > 0 || plan_.transport == Transport::CopyEngine;
  static const std::vector<Measured> kNone;
  const std::vector<Measured>& beside = moves ? points_.select(filter) : kNone;
  if (!beside.empty()) {
    copies_slow_ = copies_slow_ || plan_.transport == Transport::CopyEngine;
    // Measured beside kernels that take SMs which it counts on, too, its loss holds theirs.
    if (plan_.sm.compute + plan_.sm.comm > machine_.gpu.sms)
      cost.demand.sms = std::min(cost.demand.sms, machine_.gpu.sms - plan_.sm.comm);
    clocked.in_company = true;
    // Alone more sizes were measured than in company: between those, what company costs is looked for, not the time.
    bool beyond = false;
    static const Shape kLevel = [](const Place&) { return 1.0; };
    const std::vector<Measured>& costs = company_costs(filter, beside, alone, clocked.curve.relaxed.ns > 0, innermost);
    if (!costs.empty()) {
      const double mhz = interpolate_clock(beside, at, innermost);
      const double by_clock = mhz > 0 && clocked.curve.known() ? clocked.curve.at(mhz) : clocked.curve.dense.ns;
      clocked.company = {by_clock * interpolate(costs, at, kLevel, beyond, innermost), mhz};
    } else {
      clocked.company = scaled(beside, at, along_whole(beside_at), count(even_price.beside), count(routed.beside),
                               filter.op, innermost);
      clocked.company.ns = std::max(clocked.company.ns - off, 0.0);
    }
  }
  clocked.gaps = eager_gaps(cell);
  clocked.pace = pace_.compute(cell.op->kind, cell.rank);
  cost.curve = static_cast<std::int32_t>(clocked_.size());
  clocked_.push_back(clocked);
}

void ProfileTable::adjust_exchange(const CostCell& cell, OpCost& cost) {
  const double tokens = cell.exchange->load.ranks[static_cast<std::size_t>(cell.rank)].tokens;
  const Place at{static_cast<double>(plan_.world.ranks), static_cast<double>(cell.sms), 0, tokens};
  if (tokens <= 0) return;
  const bool dispatch = is_dispatch(cell.op->kind);
  const auto apply = [&](std::string_view name, bool beside, Ns OpCost::*field) {
    const PointFilter filter{.op = name,
                             .transport = plan_.transport,
                             .precision = dispatch ? plan_.shape.dispatch : plan_.shape.combine,
                             .beside = beside,
                             .company_sms = plan_.sm.compute};
    const std::vector<Measured>& points = points_.select(filter);
    if (points.empty()) return false;
    const auto price_at = [&](const Place& p, bool inside) {
      const Exchange& exchange = exchange_at(static_cast<int>(p[0]), p[3], inside);
      const OpCost price = price_exchange(cell.op->kind, exchange, 0, machine_, static_cast<int>(p[1]));
      return static_cast<double>((price.*field).count());
    };
    // Points were measured inside a node, whatever lies between the plan's ranks: so they go on as kernels do there.
    const auto shape = [&](const Place& p) { return price_at(p, wires_differ_); };
    const double even = price_at(at, false);
    cost.*field = to_ns(scaled(points, at, shape, even, static_cast<double>((cost.*field).count()), name).ns);
    return true;
  };
  const OpCost analytical = cost;
  const std::string_view name = op_name(cell.op->kind);
  if (!apply(name, false, &OpCost::time)) missing_.insert(std::string(name));
  if (apply(name, true, &OpCost::beside)) {
    cost.demand.loaded = 0;  // what was measured beside each other holds the losses of both
  } else if (analytical.time > Ns{0}) {
    cost.beside = Ns{analytical.beside.count() * cost.time.count() / analytical.time.count()};
  }
  const auto rescale_wait = [&](Ns now, Ns before) {
    if (before > Ns{0}) cost.for_peers = Ns{analytical.for_peers.count() * now.count() / before.count()};
  };
  if (is_collective(cell.op->kind)) rescale_wait(cost.time, analytical.time);
  if (wires_differ_) {
    // A comm kernel lasts at least as long as its bytes are on the way; a receive's wire stays the fabric's.
    if (is_collective(cell.op->kind)) {
      moving_ += cost.time;
      held_ += std::max(cost.time, analytical.time);
      cost.time = std::max(cost.time, analytical.time);
      // What computation costs the kernel's own moving does not show while it waits for the fabric.
      cost.beside = std::max(cost.beside, analytical.time);
      cost.for_peers = std::max(cost.for_peers, std::min(analytical.for_peers, cost.time));
    } else if (is_recv(cell.op->kind) && plan_.transport == Transport::CopyEngine) {
      // Its copies move over the links inside as fast as they do, and wait for the fabric.
      if (apply(dispatch ? "D.wire" : "C.wire", false, &OpCost::wire)) {
        moving_ += std::min(cost.wire, analytical.wire);
        held_ += analytical.wire;
        cost.wire = analytical.wire;
      }
    }
    return;
  }
  if (is_recv(cell.op->kind)) {
    const std::string_view wire = dispatch ? "D.wire" : "C.wire";
    if (!apply(wire, false, &OpCost::wire)) missing_.insert(std::string(wire));
    rescale_wait(cost.wire, analytical.wire);
  }
  if (cost.notify > Ns{0} && !apply("D.notify", false, &OpCost::notify)) missing_.insert("D.notify");
}

void ProfileTable::adjust(const CostCell& cell, OpCost& cost) {
  if (is_compute(cell.op->kind)) {
    adjust_compute(cell, cost);
  } else if (is_comm(cell.op->kind)) {
    adjust_exchange(cell, cost);
  }
  if (cost.curve >= 0 || cost.time <= Ns{0}) return;
  const Ns gaps = eager_gaps(cell);
  cost.time += gaps;
  if (cost.beside > Ns{0}) cost.beside += gaps;
}

Ns ProfileTable::eager_gaps(const CostCell& cell) const {
  if (plan_.execution != Execution::Eager || !profile_.host) return Ns{0};
  const auto kernels = profile_kernels(profile_, op_name(cell.op->kind));
  if (!kernels) return Ns{0};
  const Ns more = std::max(profile_.host->eager_node_gap - profile_.host->node_gap, Ns{0});
  return to_ns(std::max(*kernels - 1, 0.0) * static_cast<double>(more.count()));
}

double ProfileTable::loss_share() const {
  // An un-split step's comm kernels take the SMs that computation also counts on, whether they move data or wait.
  if (plan_.sm.compute + plan_.sm.comm > machine_.gpu.sms) return 1;
  // Points beside communication were measured while it moved data all along. Over a slower fabric the same bytes move
  // in the same memory, over a longer time: the loss is spread over it.
  return held_ > moving_ ? static_cast<double>(moving_.count()) / static_cast<double>(held_.count()) : 1;
}

std::string listed(const std::set<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

ClockedCosts ProfileTable::build(RoutedLoads* loads) {
  CostTable table = analytical_costs(
      plan_, machine_, [this](const CostCell& cell, OpCost& cost) { adjust(cell, cost); }, loads);
  if (profile_.host) table.host = *profile_.host;
  table.copies_slow = copies_slow_;
  // The first sentence of the analytical table no longer holds.
  table.assumptions.front() =
      "Op times come from " + profile_.file + ", measured on " + profile_.machine.gpu + " on " + profile_.date + ".";
  for (const std::string& warning : profile_.warnings) table.assumptions.push_back(warning + ".");
  if (!missing_.empty())
    table.assumptions.push_back("Not in the profile, so worked out from published rates: " + listed(missing_) + ".");
  if (borrowed_)
    table.assumptions.push_back("MLP was not measured over " + std::string(transport_info(plan_.transport).name) +
                                ", so takes what it took over a transport that lays out rows alike.");
  if (wires_differ_)
    table.assumptions.push_back("The profile was measured inside a node, so wires take what the model of " +
                                machine_.fabric.name +
                                " says, and comm kernels at least that, moving as much as was measured over longer.");
  if (!beyond_.empty())
    table.assumptions.push_back(
        "Beyond what was measured, so continued as the analytical cost goes: " + listed(beyond_) + ".");
  std::vector<bool> computes;
  for (const OpDef& op : plan_.ops) computes.push_back(is_compute(op.kind));
  return {std::move(table), std::move(clocked_), relaxed_duty_, loss_share(), std::move(computes)};
}

/// What has to be equal for a layer's measured times to hold.
bool same_layer(ModelShape a, const ModelShape& b) {
  a.name = b.name;
  a.layers = b.layers;
  a.dense_layers = b.dense_layers;
  a.moe_period = b.moe_period;
  a.mtp_layers = b.mtp_layers;
  a.tie_embeddings = b.tie_embeddings;
  a.max_position = b.max_position;
  a.moe.scoring = b.moe.scoring;
  a.moe.norm_top_k = b.moe.norm_top_k;
  a.moe.scaling = b.moe.scaling;
  // Precisions are matched point by point.
  a.weights = b.weights;
  a.expert_weights = b.expert_weights;
  a.kv_cache = b.kv_cache;
  a.dispatch = b.dispatch;
  a.combine = b.combine;
  return a == b;
}

}  // namespace

std::optional<double> profile_kernels(const Profile& profile, std::string_view op) {
  for (const ProfileFit& fit : profile.fits) {
    if (fit.formula == "kernels" && fit.what == "kernels of " + std::string(op) && !fit.parameters.empty())
      return fit.parameters[0].second;
  }
  return std::nullopt;
}

ClockedCosts clocked_costs(const Plan& plan, const Profile& profile, const MachineSpec& machine, RoutedLoads* loads) {
  if (!same_layer(profile.shape, plan.shape))
    throw InputError(profile.file, "/shape",
                     "was measured for another model (" + profile.shape.name + ", hidden " +
                         std::to_string(profile.shape.hidden) + "), not for " + plan.shape.name + ", hidden " +
                         std::to_string(plan.shape.hidden));
  if (profile.tensor_parallel != plan.tensor_parallel)
    throw InputError(profile.file, "/tensor",
                     "was measured with " + std::to_string(profile.tensor_parallel) + ", the plan has " +
                         std::to_string(plan.tensor_parallel));
  if (!profile.machine.preset.empty() && profile.machine.preset != machine.gpu.name)
    throw InputError(profile.file, "/machine/preset",
                     "was measured on " + profile.machine.preset + ", the plan is for " + machine.gpu.name);
  return ProfileTable(plan, profile, machine).build(loads);
}

CostTable profile_costs(const Plan& plan, const Profile& profile, const MachineSpec& machine, RoutedLoads* loads,
                        const PowerState& power) {
  ClockedCosts costs = clocked_costs(plan, profile, machine, loads);
  costs.set(power);
  return std::move(costs).take();
}

}  // namespace dbo
