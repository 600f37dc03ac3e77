#include "sim/cost/op_price.h"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace dbo {
namespace {

Ns rounded(double seconds) {
  return ns_from_us(seconds * 1e6);
}

/// At most 2^62: work beyond that takes so long that it is refused for its time.
std::int64_t whole(double number) {
  return static_cast<std::int64_t>(std::min(number + 0.5, 0x1p62));
}

bool is_core(KernelWork::Kind kind) {
  return kind == KernelWork::Kind::DecodeCore || kind == KernelWork::Kind::PrefillCore;
}

double payload_of(const ModelShape& shape, bool dispatch) {
  return dispatch ? dispatch_bytes(shape) : combine_bytes(shape);
}

/// The factors' floors hold the latency of the fabrics they were measured on; another fabric's differs by this much.
double latency_beyond(const FabricSpec& fabric) {
  constexpr double kMeasured = 5e-6;
  return fabric.latency_s > 0 ? fabric.latency_s - kMeasured : 0;
}

/// The largest of `count` draws from a normal distribution, expected, in standard deviations. A table: logarithms
/// differ in their last bits from library to library.
double expected_largest(int count) {
  constexpr double kOfPowersOfTwo[] = {0,     0.564, 1.029, 1.424, 1.766, 2.070, 2.344, 2.595, 2.827,
                                       3.044, 3.248, 3.442, 3.626, 3.802, 3.971, 4.134, 4.291, 4.443};
  constexpr int kLast = static_cast<int>(std::size(kOfPowersOfTwo)) - 1;
  int power = 0;
  while (power + 1 < kLast && (2 << power) <= count) ++power;
  const double into = std::min(static_cast<double>(count) / (1 << power) - 1, 1.0);
  return kOfPowersOfTwo[power] + into * (kOfPowersOfTwo[power + 1] - kOfPowersOfTwo[power]);
}

OpCost price_copy(double tokens, const Exchange& exchange, const MachineSpec& machine, int sms) {
  KernelWork copy;
  copy.act_bytes = tokens * exchange.shape->hidden * 4;
  OpCost cost;
  cost.time = rounded(kernel_time(copy, machine.gpu, machine.rates().compute, std::max(sms, 1)).seconds);
  cost.demand.hbm_bytes = whole(copy.act_bytes);
  cost.demand.sms = sms;
  return cost;
}

}  // namespace

std::vector<TimedKernel> timed_kernels(OpKind kind, const OpContext& context, const MachineSpec& machine, int sms) {
  std::vector<TimedKernel> out;
  for (KernelWork& work : op_work(kind, context)) {
    const KernelTime time =
        kernel_time(work, machine.gpu, machine.rates().compute, std::max(sms, 1), context.tensor_parallel);
    out.push_back({std::move(work), time});
  }
  return out;
}

OpCost price_compute(OpKind kind, const OpContext& context, const MachineSpec& machine, int sms) {
  return price_kernels(timed_kernels(kind, context, machine, sms), machine, sms);
}

OpCost price_kernels(const std::vector<TimedKernel>& kernels, const MachineSpec& machine, int sms) {
  OpCost cost;
  double seconds = 0, beside = 0, arithmetic = 0, flops = 0, hbm = 0, weights = 0, longest = 0;
  for (const TimedKernel& kernel : kernels) {
    seconds += kernel.time.seconds;
    beside += kernel.time.beside_seconds;
    arithmetic += kernel.time.sm_seconds;
    hbm += kernel.time.hbm_bytes;
    if (!is_core(kernel.work.kind)) weights += kernel.work.weight_bytes;  // a cache belongs to its ubatch
    flops += kernel.work.flops;
    if (kernel.time.seconds > longest) {
      longest = kernel.time.seconds;
      cost.demand.tiles = static_cast<std::int32_t>(std::min(std::ceil(kernel.time.tiles), 0x1p30));
      // GEMMs and attention cores are persistent kernels, whose blocks stay on their SMs to the end.
      cost.demand.block = kernel.time.tiles > 0 || is_core(kernel.work.kind) ? rounded(longest) : Ns{};
    }
  }
  if (kernels.empty()) return cost;
  const double gaps = machine.rates().compute.kernel_gap_s * static_cast<double>(kernels.size() - 1);
  cost.time = rounded(seconds + gaps);
  cost.beside = rounded(beside + gaps);
  cost.demand.flops = whole(flops);
  cost.demand.hbm_bytes = whole(hbm);
  cost.demand.weight_bytes = whole(weights);
  cost.demand.sms = sms;
  cost.demand.sm_share = static_cast<std::int32_t>(1024 * std::min(arithmetic / (seconds + gaps), 1.0));
  return cost;
}

Exchange make_exchange(Transport transport, const ModelShape& shape, int domain, RoutedLoad load, const Pace& pace) {
  Exchange exchange;
  exchange.pace = pace;
  const int ranks = static_cast<int>(load.ranks.size());
  exchange.transport = transport;
  exchange.shape = &shape;
  exchange.near_peers = std::min(domain, ranks) - 1;
  exchange.far_peers = ranks - 1 - exchange.near_peers;
  for (const bool dispatch : {true, false}) {
    SlowestPorts& slowest = dispatch ? exchange.slowest_dispatch : exchange.slowest_combine;
    for (int rank = 0; rank < ranks; ++rank) {
      const PortBytes bytes = port_bytes(load.ranks[static_cast<std::size_t>(rank)], transport,
                                         payload_of(shape, dispatch), exchange.near_peers, exchange.far_peers);
      const PortBytes paced = at_pace(bytes, pace.wire(rank));
      const double PortBytes::*busiest = exchange.far_peers > 0 ? &PortBytes::far : &PortBytes::near;
      if (paced.*busiest > slowest.paced.*busiest) exchange.slowest_rank = rank;
      slowest.paced = larger(slowest.paced, paced);
      slowest.loaded = larger(slowest.loaded, bytes);
    }
    for (PortBytes* bytes : {&slowest.paced, &slowest.loaded}) bytes->handled_near = bytes->handled_far = 0;
  }
  exchange.load = std::move(load);
  return exchange;
}

namespace {

ExchangeSpec exchange_spec(const Exchange& exchange, const MachineSpec& machine, int sms) {
  return {.transport = exchange.transport,
          .gpu = &machine.gpu,
          .nic_bytes_per_s = machine.nic_bytes_per_s(),
          .latency_s = latency_beyond(machine.fabric),
          .sms = sms,
          .near_peers = exchange.near_peers,
          .far_peers = exchange.far_peers,
          .hbm_bytes_per_s = static_cast<double>(machine.shared_rates().hbm_bytes_per_s)};
}

ExchangeTime direction_time(const Exchange& exchange, int rank, ExchangeSpec spec, const TransportFactors& factors,
                            bool dispatch) {
  spec.wire_factor = exchange.pace.wire(rank);
  spec.flows = exchange.flows;
  const SlowestPorts none, &slowest = dispatch ? exchange.slowest_dispatch : exchange.slowest_combine;
  return exchange_time(exchange.load.ranks[static_cast<std::size_t>(rank)], exchange.flows ? none : slowest, spec,
                       dispatch ? factors.dispatch : factors.combine, payload_of(*exchange.shape, dispatch), dispatch);
}

/// What a call waits for the last of all ranks. They met in the call before, and have run apart since for about as long
/// as an exchange beside compute takes: calls of steps that hide their exchanges follow one another closely.
double peer_seconds(const Exchange& exchange, int rank, const ExchangeSpec& spec, const TransportFactors& f) {
  if (exchange.far_peers == 0 || f.dispatch.peer_spread_s <= 0) return 0;
  double apart = 0;
  for (const bool dispatch : {true, false})
    apart += direction_time(exchange, rank, spec, f, dispatch).whole *
             std::max((dispatch ? f.dispatch : f.combine).beside, 1.0) / 2;
  constexpr double kMeasured = 1e-3;
  return f.dispatch.peer_spread_s * std::sqrt(apart / kMeasured) *
         expected_largest(static_cast<int>(exchange.load.ranks.size()));
}

}  // namespace

std::vector<PairFlow> exchange_flows(const Exchange& exchange, int domain, const MachineSpec& machine, bool dispatch,
                                     bool alike) {
  const ExchangeSpec spec = exchange_spec(exchange, machine, 0);
  const TransportFactors& factors = machine.rates().transport(exchange.transport);
  const ExchangeFactors& f = dispatch ? factors.dispatch : factors.combine;
  const double payload = payload_of(*exchange.shape, dispatch);
  if (!alike) return pair_flows(exchange.load, domain, spec, f, payload, dispatch);
  return alike_flows(
      port_bytes(exchange.load.ranks[0], exchange.transport, payload, exchange.near_peers, exchange.far_peers), spec,
      f);
}

std::vector<std::int64_t> exchange_ports(const Exchange& exchange, const MachineSpec& machine, bool alike) {
  return port_rates(alike ? 1 : static_cast<int>(exchange.load.ranks.size()), exchange_spec(exchange, machine, 0),
                    exchange.pace);
}

OpCost price_exchange(OpKind kind, const Exchange& exchange, int rank, const MachineSpec& machine, int sms) {
  const RankTraffic& traffic = exchange.load.ranks[static_cast<std::size_t>(rank)];
  if (kind == OpKind::CCopy) return price_copy(traffic.tokens, exchange, machine, sms);
  const bool dispatch = is_dispatch(kind), send = is_send(kind), collective = is_collective(kind);
  const TransportFactors& factors = machine.rates().transport(exchange.transport);
  const ExchangeFactors& f = dispatch ? factors.dispatch : factors.combine;
  if (exchange.transport == Transport::Ll) sms = low_latency_blocks(exchange.shape->moe.routed_experts, sms);
  const ExchangeSpec spec = exchange_spec(exchange, machine, sms);
  const ExchangeTime time = direction_time(exchange, rank, spec, factors, dispatch);
  OpCost cost;
  if (send) {
    cost.time = rounded(time.send);
  } else if (is_recv(kind)) {
    cost.time = rounded(time.recv);
    cost.wire = rounded(time.wire);
    cost.for_peers = rounded(time.wire_for_peers);
  } else if (is_wire(kind)) {
    cost.time = rounded(time.wire);
  } else {
    cost.time = rounded(time.whole);
    cost.beside = rounded(time.whole * std::max(f.beside, 1.0));
    cost.peers = rounded(peer_seconds(exchange, rank, spec, factors));
    cost.for_peers = rounded(time.whole_for_peers);
    cost.notify = dispatch ? rounded(time.notify) : Ns{};
  }
  cost.data_after = rounded(time.data_after);
  cost.data_floor = rounded(time.data_floor);
  if (collective && exchange.transport == Transport::CopyEngine) cost.data_floor = rounded(time.data_floor + time.recv);
  if (cost.for_peers > Ns{0}) cost.slowest = exchange.slowest_rank;
  // A slower port is as full with fewer bytes.
  const double pace = exchange.pace.wire(rank);
  cost.wire_traffic = {whole(time.wire_hbm_bytes), whole(time.wire_link_bytes * pace),
                       whole(time.wire_nic_bytes * pace)};
  if (!is_recv(kind)) cost.wire_traffic = {};
  if (collective) {
    cost.demand.link_bytes = whole((time.send_port_bytes + time.wire_link_bytes) * pace);
    cost.demand.nic_bytes = whole(time.wire_nic_bytes * pace);
  } else if (send) {
    cost.demand.link_bytes = whole(time.send_port_bytes * pace);
  }
  cost.demand.port_bytes = whole(send ? time.send_port_bytes : time.wire_port_bytes);
  cost.demand.hbm_bytes = whole(collective ? time.whole_hbm_bytes : send ? time.send_hbm_bytes : time.recv_hbm_bytes);
  // Copy engines move the data of a whole exchange; packing before and after is short.
  cost.demand.sms = collective && exchange.transport == Transport::CopyEngine ? 0 : sms;
  cost.demand.cooperative = exchange.transport == Transport::Ht && collective;
  if (collective) cost.demand.loaded = static_cast<std::int32_t>(f.loaded * 1024 + 0.5);
  if (time.sm_seconds > 0)
    cost.demand.sm_share = static_cast<std::int32_t>(std::min(std::round(1024 * time.sm_seconds / time.whole), 1024.0));
  return cost;
}

}  // namespace dbo
