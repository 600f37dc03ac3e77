#include "sim/cost/analytical.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "sim/base/error.h"

namespace dbo {
namespace {

/// Layers whose ops cost the same, and one layer of each class to ask about.
struct LayerClasses {
  std::vector<int> class_of_layer;
  std::vector<int> example;
};

LayerClasses layer_classes(const Plan& plan, const Router& router) {
  LayerClasses out;
  std::map<std::tuple<bool, bool, int>, int> known;
  for (int layer = 0; layer < std::max(plan.shape.layers, 1); ++layer) {
    const int routing = router.same_load_on_all_layers() ? 0 : router.routing_class(layer);
    const std::tuple<bool, bool, int> key{plan.shape.is_moe_layer(layer), plan.shape.attention.has_window(layer),
                                          routing};
    const auto [it, fresh] = known.emplace(key, static_cast<int>(known.size()));
    if (fresh) out.example.push_back(layer);
    out.class_of_layer.push_back(it->second);
  }
  return out;
}

/// Index into plan.loads of every rank.
std::vector<int> loads_of_ranks(const Plan& plan) {
  std::vector<int> out(static_cast<std::size_t>(plan.world.ranks), -1);
  for (const RankClass& c : plan.classes)
    for (const auto& [begin, end] : c.ranks)
      for (int rank = begin; rank < end; ++rank) out[static_cast<std::size_t>(rank)] = c.load;
  for (const int load : out) DBO_CHECK(load >= 0, "every rank is in a class");
  return out;
}

void slow_down(OpCost& cost, double factor) {
  for (Ns* time : {&cost.time, &cost.beside, &cost.demand.block}) *time = slower(*time, factor);
}

class Builder {
 public:
  Builder(const Plan& plan, const MachineSpec& machine, const CostHook& hook, RoutedLoads* loads)
      : plan_(plan),
        machine_(machine),
        hook_(hook),
        loads_(loads),
        router_(plan),
        classes_(layer_classes(plan, router_)),
        load_of_rank_(loads_of_ranks(plan)),
        domain_(machine.link_domain(plan.world)),
        pace_(machine.stragglers, plan.world.ranks, plan.tensor_parallel) {}

  CostTable build();

 private:
  /// Whether all ranks do the same.
  bool alike() const {
    return plan_.routing.kind == RoutingKind::Balanced && plan_.loads.size() == 1 && plan_.classes.size() == 1 &&
           plan_.tensor_parallel == 1 && pace_.even();
  }
  std::vector<int> group_ranks();
  void add_flows(FlowCosts& flows, const Exchange& exchange) const;
  Exchange route(int layer, int ubatch) const;
  /// Costs of the ops that depend on a rank's own batch alone, by load, pace and op: ranks with equal ones share them.
  using OwnCosts = std::map<std::tuple<int, int, OpId>, OpCost>;
  void fill(CostTable& table, int group, int rank, int layer_class, int ubatch, const Exchange& exchange,
            OwnCosts& own) const;
  OpContext context(int rank, int layer, int ubatch, const RoutedLoad& routed) const;
  void assume(CostTable& table) const;
  const UbatchLoad* load_of(int rank, int ubatch) const {
    const Load& load = plan_.loads[static_cast<std::size_t>(load_of_rank_[static_cast<std::size_t>(rank)])];
    const auto u = static_cast<std::size_t>(ubatch);
    return u < load.ubatches.size() ? &load.ubatches[u] : nullptr;
  }

  const Plan& plan_;
  const MachineSpec& machine_;
  const CostHook& hook_;
  RoutedLoads* loads_;
  Router router_;
  LayerClasses classes_;
  std::vector<int> load_of_rank_;
  int domain_;
  Pace pace_;
  std::vector<int> group_of_rank_;
  bool sampled_ = false;
};

/// Sets group_of_rank_ and returns one rank of each group.
std::vector<int> Builder::group_ranks() {
  // Flows of equal ranks differ when the ranks around them do.
  const bool balanced = plan_.routing.kind == RoutingKind::Balanced && (!machine_.flows || alike());
  if (machine_.flows && !alike()) check_flow_ranks(plan_);
  std::vector<int> examples;
  std::map<std::tuple<int, int, int>, int> known;  // load, place in the tensor-parallel group, pace
  for (int rank = 0; rank < plan_.world.ranks; ++rank) {
    const std::tuple<int, int, int> key = balanced ? std::tuple{load_of_rank_[static_cast<std::size_t>(rank)],
                                                                rank % plan_.tensor_parallel, pace_.kind(rank)}
                                                   : std::tuple{rank, 0, 0};
    const auto [it, fresh] = known.emplace(key, static_cast<int>(known.size()));
    if (fresh) examples.push_back(rank);
    group_of_rank_.push_back(it->second);
  }
  return examples;
}

Exchange Builder::route(int layer, int ubatch) const {
  std::vector<TokenRange> tokens;
  for (int rank = 0; rank < plan_.world.ranks; ++rank) {
    const UbatchLoad* load = load_of(rank, ubatch);
    // Padding is computed on but not sent.
    const TokenRange range = load != nullptr ? TokenRange{load->token_begin, load->token_end} : TokenRange{};
    tokens.push_back(tensor_share(range, rank, plan_.tensor_parallel));
  }
  const bool pairs = machine_.flows && !alike();
  Exchange exchange = make_exchange(plan_.transport, plan_.shape, domain_,
                                    loads_ != nullptr ? loads_->load(router_, layer, tokens, domain_, pairs)
                                                      : router_.load(layer, tokens, domain_, pairs),
                                    pace_);
  exchange.flows = machine_.flows;
  return exchange;
}

OpContext Builder::context(int rank, int layer, int ubatch, const RoutedLoad& routed) const {
  static const UbatchLoad kNothing;
  const UbatchLoad* load = load_of(rank, ubatch);
  const UbatchLoad& batch = load != nullptr ? *load : kNothing;
  const AttentionShape& attention = plan_.shape.attention;
  const RankTraffic& traffic = routed.ranks[static_cast<std::size_t>(rank)];
  OpContext c;
  c.shape = &plan_.shape;
  c.tensor_parallel = plan_.tensor_parallel;
  c.moe_layer = plan_.shape.is_moe_layer(layer);
  c.tokens = static_cast<double>(batch.padded);
  c.share_tokens = c.tokens / plan_.tensor_parallel;
  c.attention = attention_load(batch, attention.has_window(layer) ? attention.sliding_window : 0);
  if (attention.index_top_k > 0) c.sparse = sparse_attention_load(batch, attention.index_top_k);
  const auto slots = static_cast<std::size_t>(router_.placement(layer).slots);
  c.expert_rows = std::span(routed.expert_rows).subspan(static_cast<std::size_t>(rank) * slots, slots);
  c.received = traffic.ranks_self + traffic.ranks_in_near + traffic.ranks_in_far;
  c.expert_major = !transport_info(plan_.transport).dedup_per_rank;
  return c;
}

void Builder::fill(CostTable& table, int group, int rank, int layer_class, int ubatch, const Exchange& exchange,
                   OwnCosts& own) const {
  const OpContext c = context(rank, classes_.example[static_cast<std::size_t>(layer_class)], ubatch, exchange.load);
  const int load = load_of_rank_[static_cast<std::size_t>(rank)];
  for (OpId op = 0; op < plan_.ops.size(); ++op) {
    const OpDef& def = plan_.ops[op];
    OpCost& cost = table.at(group, layer_class, ubatch, op);
    const bool shared = is_compute(def.kind) && def.kind != OpKind::MLP;
    const std::tuple<int, int, OpId> key{load, pace_.kind(rank), op};
    if (const auto known = shared ? own.find(key) : own.end(); known != own.end()) {
      cost = known->second;
      continue;
    }
    const int sms = pool_sms(plan_, def, machine_.gpu);
    if (is_compute(def.kind)) {
      cost = price_compute(def.kind, c, machine_, sms);
    } else if (is_comm(def.kind)) {
      cost = price_exchange(def.kind, exchange, rank, machine_, sms);
    }
    if (hook_) hook_({&def, &c, &exchange, rank, sms}, cost);
    if (is_compute(def.kind)) slow_down(cost, pace_.compute(def.kind, rank));
    if (shared) own.emplace(key, cost);
  }
}

/// Both directions of one exchange.
void Builder::add_flows(FlowCosts& flows, const Exchange& exchange) const {
  if (flows.ports.empty()) flows.ports = exchange_ports(exchange, machine_, alike());
  // Kernels that pass data through a ring in their peer's memory need the peer to take it.
  flows.meet = plan_.transport == Transport::Ht || plan_.transport == Transport::Nccl;
  for (const bool dispatch : {false, true})
    flows.exchanges.push_back(exchange_flows(exchange, domain_, machine_, dispatch, alike()));
}

CostTable Builder::build() {
  const std::vector<int> examples = group_ranks();
  CostTable table(plan_, group_of_rank_, classes_.class_of_layer);
  table.flows.of_call.resize(static_cast<std::size_t>(table.layer_classes() * table.ubatches() * 2));
  for (int ubatch = 0; ubatch < table.ubatches(); ++ubatch) {
    // Layers that differ otherwise may still route alike.
    std::map<int, Exchange> exchanges;
    std::map<int, int> flows_of;  // by routing, too: the first of the exchange's two
    for (int layer_class = 0; layer_class < table.layer_classes(); ++layer_class) {
      const int layer = classes_.example[static_cast<std::size_t>(layer_class)];
      const int routing = router_.same_load_on_all_layers() ? 0 : router_.routing_class(layer);
      auto exchange = exchanges.find(routing);
      if (exchange == exchanges.end()) {
        exchange = exchanges.emplace(routing, route(layer, ubatch)).first;
        flows_of[routing] = static_cast<int>(table.flows.exchanges.size());
        if (machine_.flows) add_flows(table.flows, exchange->second);
      }
      for (const int direction : {0, 1})
        table.flows.of_call[static_cast<std::size_t>((layer_class * table.ubatches() + ubatch) * 2 + direction)] =
            flows_of[routing] + direction;
      sampled_ = sampled_ || exchange->second.load.sampled;
      OwnCosts own;
      for (int group = 0; group < table.groups(); ++group)
        fill(table, group, examples[static_cast<std::size_t>(group)], layer_class, ubatch, exchange->second, own);
    }
  }
  table.host = machine_.host;
  table.machine = machine_.shared_rates();
  assume(table);
  return table;
}

void Builder::assume(CostTable& table) const {
  std::vector<std::string>& say = table.assumptions;
  say.emplace_back("Op times are a roofline with achieved-rate factors fitted to published measurements.");
  if (machine_.flows)
    say.emplace_back(
        "The data of an exchange moves in pairwise flows that share ports fairly, from when its sender comes to it; a "
        "receive waits for its own.");
  say.emplace_back(
      "Ops that run side by side share SMs, memory bandwidth and ports; each is priced as if it ran alone first.");
  if (plan_.routing.kind == RoutingKind::Balanced) say.emplace_back("Every expert receives equally many rows.");
  for (std::string& sentence : straggler_sentences(machine_.stragglers)) say.push_back(std::move(sentence));
  if (plan_.shape.mtp_layers > 0)
    say.emplace_back("Draft (MTP) passes are left out; query tokens beyond the first are verified in the step.");
  if (sampled_)
    say.emplace_back("Routing was counted on " + std::to_string(router_.counted_tokens()) +
                     " tokens a rank and scaled up.");
  if (plan_.tensor_parallel > 1)
    say.emplace_back(
        "Tensor-parallel GPUs sum attention's and dense layers' outputs inside those ops, send their part of the "
        "tokens to the experts and gather all tokens at the next layer's start.");
  if (plan_.shape.attention.index_top_k > 0)
    say.emplace_back("Sparse attention reads each cached token once a request; its top-k is priced as memory traffic.");
  if (plan_.sm.comm > 0)
    say.emplace_back("Kernels of the compute SMs run on all of them throughout, also while no communication runs.");
  std::string whole_gpu;
  for (const OpDef& op : plan_.ops)
    if (plan_.sm.comm > 0 && op.sms == SmPool::All) whole_gpu += (whole_gpu.empty() ? "" : ", ") + op.name;
  if (!whole_gpu.empty())
    say.push_back("Kernels that ignore the SM limit run on the whole GPU, and comm kernels wait for their blocks: " +
                  whole_gpu + ".");
}

}  // namespace

CostTable analytical_costs(const Plan& plan, const MachineSpec& machine, const CostHook& hook, RoutedLoads* loads) {
  if (!plan.shape.has_dims())
    throw InputError("the model has no dimensions: only fixed costs can be used for layer counts alone");
  return Builder(plan, machine, hook, loads).build();
}

}  // namespace dbo
