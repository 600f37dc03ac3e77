#include "sim/cost/analytical.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "sim/base/error.h"

namespace dbo {
namespace {

Ns rounded(double seconds) {
  return ns_from_us(seconds * 1e6);
}

std::int64_t whole(double number) {
  return static_cast<std::int64_t>(number + 0.5);
}

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

class Builder {
 public:
  Builder(const Plan& plan, const MachineSpec& machine)
      : plan_(plan),
        machine_(machine),
        factors_(machine.factors != nullptr ? *machine.factors : default_factors()),
        router_(plan),
        classes_(layer_classes(plan, router_)),
        load_of_rank_(loads_of_ranks(plan)),
        domain_(machine.link_domain(plan.world)) {
    if (!plan.shape.has_dims())
      throw InputError("the model has no dimensions: only fixed costs can be used for layer counts alone");
  }

  CostTable build();

 private:
  std::vector<int> group_ranks();
  RoutedLoad route(int layer, int ubatch) const;
  void fill(CostTable& table, int group, int rank, int layer_class, int ubatch, const RoutedLoad& routed);
  OpContext context(int rank, int layer, int ubatch, const RoutedLoad& routed) const;
  OpCost compute_cost(const OpDef& op, const OpContext& context) const;
  OpCost comm_cost(const OpDef& op, int rank, const RoutedLoad& routed) const;
  void assume(CostTable& table) const;
  bool beside() const;
  const UbatchLoad* load_of(int rank, int ubatch) const {
    const Load& load = plan_.loads[static_cast<std::size_t>(load_of_rank_[static_cast<std::size_t>(rank)])];
    const auto u = static_cast<std::size_t>(ubatch);
    return u < load.ubatches.size() ? &load.ubatches[u] : nullptr;
  }

  const Plan& plan_;
  const MachineSpec& machine_;
  const CostFactors& factors_;
  Router router_;
  LayerClasses classes_;
  std::vector<int> load_of_rank_;
  int domain_;
  std::vector<int> group_of_rank_;
  bool sampled_ = false;
};

/// Sets group_of_rank_ and returns one rank of each group.
std::vector<int> Builder::group_ranks() {
  const bool balanced = plan_.routing.kind == RoutingKind::Balanced;
  std::vector<int> examples;
  std::map<std::pair<int, int>, int> known;  // load and place in the tensor-parallel group
  for (int rank = 0; rank < plan_.world.ranks; ++rank) {
    const std::pair<int, int> key =
        balanced ? std::pair{load_of_rank_[static_cast<std::size_t>(rank)], rank % plan_.tensor_parallel}
                 : std::pair{rank, 0};
    const auto [it, fresh] = known.emplace(key, static_cast<int>(known.size()));
    if (fresh) examples.push_back(rank);
    group_of_rank_.push_back(it->second);
  }
  return examples;
}

RoutedLoad Builder::route(int layer, int ubatch) const {
  std::vector<TokenRange> tokens;
  for (int rank = 0; rank < plan_.world.ranks; ++rank) {
    const UbatchLoad* load = load_of(rank, ubatch);
    // Padding is computed on but not sent.
    const TokenRange range = load != nullptr ? TokenRange{load->token_begin, load->token_end} : TokenRange{};
    tokens.push_back(tensor_share(range, rank, plan_.tensor_parallel));
  }
  return router_.load(layer, tokens, domain_);
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

OpCost Builder::compute_cost(const OpDef& op, const OpContext& context) const {
  OpCost cost;
  double seconds = 0, beside = 0, hbm = 0, longest = 0;
  const int sms = pool_sms(plan_, op, machine_.gpu);
  const std::vector<TimedKernel> kernels = timed_kernels(op.kind, context, machine_, sms);
  for (const TimedKernel& kernel : kernels) {
    seconds += kernel.time.seconds;
    beside += kernel.time.beside_seconds;
    hbm += kernel.time.hbm_bytes;
    cost.demand.flops += whole(kernel.work.flops);
    if (kernel.time.seconds > longest) {
      longest = kernel.time.seconds;
      cost.demand.tiles = static_cast<std::int32_t>(std::ceil(kernel.time.tiles));
    }
  }
  const double gaps = kernels.empty() ? 0 : factors_.compute.kernel_gap_s * static_cast<double>(kernels.size() - 1);
  cost.time = rounded(seconds + gaps);
  cost.beside = rounded(beside + gaps);
  cost.demand.hbm_bytes = whole(hbm);
  cost.demand.sms = kernels.empty() ? 0 : sms;
  return cost;
}

OpCost Builder::comm_cost(const OpDef& op, int rank, const RoutedLoad& routed) const {
  OpCost cost;
  const RankTraffic& traffic = routed.ranks[static_cast<std::size_t>(rank)];
  const double tokens = traffic.tokens;
  if (op.kind == OpKind::CCopy) {
    KernelWork copy;
    copy.act_bytes = tokens * plan_.shape.hidden * 4;
    const int sms = std::max(pool_sms(plan_, op, machine_.gpu), 1);
    cost.time = rounded(kernel_time(copy, machine_.gpu, factors_.compute, sms).seconds);
    cost.demand.hbm_bytes = whole(copy.act_bytes);
    cost.demand.sms = sms;
    return cost;
  }
  const bool dispatch = is_dispatch(op.kind);
  const TransportFactors& transport = factors_.transport(plan_.transport);
  const ExchangeFactors& f = dispatch ? transport.dispatch : transport.combine;
  const double payload = dispatch ? dispatch_bytes(plan_.shape) : combine_bytes(plan_.shape);
  const int near = std::min(domain_, plan_.world.ranks) - 1;
  ExchangeSpec spec{.transport = plan_.transport,
                    .gpu = &machine_.gpu,
                    .nic_bytes_per_s = machine_.nic_bytes_per_s(),
                    .latency_s = 0,
                    .sms = pool_sms(plan_, op, machine_.gpu),
                    .near_peers = near,
                    .far_peers = plan_.world.ranks - 1 - near};
  if (plan_.transport == Transport::Ll) spec.sms = low_latency_blocks(plan_.shape.moe.routed_experts, spec.sms);
  PortBytes slowest;
  for (const RankTraffic& t : routed.ranks) {
    const PortBytes bytes = port_bytes(t, plan_.transport, payload, spec.near_peers, spec.far_peers);
    slowest.near = std::max(slowest.near, bytes.near);
    slowest.far = std::max(slowest.far, bytes.far);
  }
  const ExchangeTime time = exchange_time(traffic, slowest, spec, f, payload, dispatch);
  if (is_send(op.kind)) {
    cost.time = rounded(time.send);
  } else if (is_recv(op.kind)) {
    cost.time = rounded(time.recv);
    cost.wire = rounded(time.wire);
  } else if (is_wire(op.kind)) {
    cost.time = rounded(time.wire);
  } else {
    cost.time = rounded(time.whole);
    cost.beside = rounded(time.whole * std::max(f.beside, 1.0));
    cost.notify = dispatch ? rounded(time.notify) : Ns{};
  }
  const bool send = is_send(op.kind), collective = is_collective(op.kind);
  cost.demand.port_bytes = whole(send ? time.send_port_bytes : time.wire_port_bytes);
  cost.demand.hbm_bytes = whole(collective ? time.whole_hbm_bytes : send ? time.send_hbm_bytes : time.recv_hbm_bytes);
  cost.demand.sms = spec.sms;
  cost.demand.cooperative = plan_.transport == Transport::Ht && is_collective(op.kind);
  return cost;
}

void Builder::fill(CostTable& table, int group, int rank, int layer_class, int ubatch, const RoutedLoad& routed) {
  const OpContext c = context(rank, classes_.example[static_cast<std::size_t>(layer_class)], ubatch, routed);
  for (OpId op = 0; op < plan_.ops.size(); ++op) {
    const OpDef& def = plan_.ops[op];
    if (is_compute(def.kind)) {
      table.at(group, layer_class, ubatch, op) = compute_cost(def, c);
    } else if (is_comm(def.kind)) {
      table.at(group, layer_class, ubatch, op) = comm_cost(def, rank, routed);
    }
    OpCost& cost = table.at(group, layer_class, ubatch, op);
    if (beside()) cost.time = std::max(cost.time, cost.beside);
  }
}

CostTable Builder::build() {
  const std::vector<int> examples = group_ranks();
  CostTable table(plan_, group_of_rank_, classes_.class_of_layer);
  for (int layer_class = 0; layer_class < table.layer_classes(); ++layer_class) {
    for (int ubatch = 0; ubatch < table.ubatches(); ++ubatch) {
      const RoutedLoad routed = route(classes_.example[static_cast<std::size_t>(layer_class)], ubatch);
      sampled_ = sampled_ || routed.sampled;
      for (int group = 0; group < table.groups(); ++group)
        fill(table, group, examples[static_cast<std::size_t>(group)], layer_class, ubatch, routed);
    }
  }
  table.host = machine_.host;
  assume(table);
  return table;
}

/// Whether compute and communication of the plan run side by side most of the time.
bool Builder::beside() const {
  return machine_.always_beside && plan_.sm.comm > 0 && plan_ubatches(plan_) > 1;
}

void Builder::assume(CostTable& table) const {
  std::vector<std::string>& say = table.assumptions;
  say.emplace_back(
      "Op times are a roofline with achieved-rate factors fitted to published measurements; each op as if "
      "it ran alone on its SMs.");
  if (plan_.routing.kind == RoutingKind::Balanced) say.emplace_back("Every expert receives equally many rows.");
  if (plan_.shape.mtp_layers > 0)
    say.emplace_back("Draft (MTP) passes are left out; query tokens beyond the first are verified in the step.");
  if (sampled_)
    say.emplace_back("Routing was counted on " + std::to_string(Router::kCountedTokens) +
                     " tokens a rank and scaled up.");
  if (plan_.tensor_parallel > 1)
    say.emplace_back(
        "Tensor-parallel GPUs sum attention's and dense layers' outputs inside those ops, send their part "
        "of the tokens to the experts and gather all tokens at the next layer's start.");
  if (plan_.shape.attention.index_top_k > 0)
    say.emplace_back("Sparse attention reads each cached token once a request; its top-k is priced as memory traffic.");
  if (plan_.sm.comm > 0)
    say.emplace_back("Kernels of the compute SMs run on all of them throughout, also while no communication runs.");
  say.emplace_back("Sampling, detokenisation and scheduling between steps are left out.");
}

}  // namespace

int MachineSpec::link_domain(const World& world) const {
  const int limit = fabric.link_domain > 0 ? fabric.link_domain : gpu.link_domain;
  // Nodes that share scale-up links join into one domain; a node with more GPUs than a domain stays one.
  if (limit <= world.ranks_per_node) return std::min(world.ranks_per_node, world.ranks);
  return std::min(limit / world.ranks_per_node * world.ranks_per_node, world.ranks);
}

double MachineSpec::nic_bytes_per_s() const {
  return fabric.nic_bytes_per_s > 0 ? fabric.nic_bytes_per_s : gpu.nic_bytes_per_s;
}

int pool_sms(const Plan& plan, const OpDef& op, const GpuSpec& gpu) {
  switch (op.sms) {
    case SmPool::Compute:
      return plan.sm.compute > 0 ? std::min(plan.sm.compute, gpu.sms) : gpu.sms;
    case SmPool::Comm:
      // Nothing set aside: comm kernels still have a block count of their own, DeepEP's default.
      return std::min(plan.sm.comm > 0 ? plan.sm.comm : kDefaultCommSms, gpu.sms);
    case SmPool::All:
      return gpu.sms;
    case SmPool::None:
      return 0;
  }
  return gpu.sms;
}

std::vector<TimedKernel> timed_kernels(OpKind kind, const OpContext& context, const MachineSpec& machine, int sms) {
  const ComputeFactors& f = (machine.factors != nullptr ? *machine.factors : default_factors()).compute;
  std::vector<TimedKernel> out;
  for (KernelWork& work : op_work(kind, context)) {
    const KernelTime time = kernel_time(work, machine.gpu, f, std::max(sms, 1), context.tensor_parallel);
    out.push_back({std::move(work), time});
  }
  return out;
}

CostTable analytical_costs(const Plan& plan, const MachineSpec& machine) {
  return Builder(plan, machine).build();
}

}  // namespace dbo
