#include "sim/cost/op_price.h"

#include <algorithm>
#include <cmath>

namespace dbo {
namespace {

Ns rounded(double seconds) {
  return ns_from_us(seconds * 1e6);
}

std::int64_t whole(double number) {
  return static_cast<std::int64_t>(number + 0.5);
}

double payload_of(const ModelShape& shape, bool dispatch) {
  return dispatch ? dispatch_bytes(shape) : combine_bytes(shape);
}

/// The factors' floors hold the latency of the fabrics they were measured on; another fabric's differs by this much.
double latency_beyond(const FabricSpec& fabric) {
  constexpr double kMeasured = 5e-6;
  return fabric.latency_s > 0 ? fabric.latency_s - kMeasured : 0;
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
  OpCost cost;
  double seconds = 0, beside = 0, hbm = 0, longest = 0;
  const std::vector<TimedKernel> kernels = timed_kernels(kind, context, machine, sms);
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
  if (kernels.empty()) return cost;
  const double gaps = machine.rates().compute.kernel_gap_s * static_cast<double>(kernels.size() - 1);
  cost.time = rounded(seconds + gaps);
  cost.beside = rounded(beside + gaps);
  cost.demand.hbm_bytes = whole(hbm);
  cost.demand.sms = sms;
  return cost;
}

Exchange make_exchange(Transport transport, const ModelShape& shape, int domain, RoutedLoad load) {
  Exchange exchange;
  const int ranks = static_cast<int>(load.ranks.size());
  exchange.transport = transport;
  exchange.shape = &shape;
  exchange.near_peers = std::min(domain, ranks) - 1;
  exchange.far_peers = ranks - 1 - exchange.near_peers;
  for (const bool dispatch : {true, false}) {
    PortBytes& slowest = dispatch ? exchange.slowest_dispatch : exchange.slowest_combine;
    for (const RankTraffic& traffic : load.ranks) {
      const PortBytes bytes =
          port_bytes(traffic, transport, payload_of(shape, dispatch), exchange.near_peers, exchange.far_peers);
      slowest.near = std::max(slowest.near, bytes.near);
      slowest.far = std::max(slowest.far, bytes.far);
    }
  }
  exchange.load = std::move(load);
  return exchange;
}

OpCost price_exchange(OpKind kind, const Exchange& exchange, int rank, const MachineSpec& machine, int sms) {
  const RankTraffic& traffic = exchange.load.ranks[static_cast<std::size_t>(rank)];
  if (kind == OpKind::CCopy) return price_copy(traffic.tokens, exchange, machine, sms);
  const bool dispatch = is_dispatch(kind), send = is_send(kind), collective = is_collective(kind);
  const TransportFactors& factors = machine.rates().transport(exchange.transport);
  const ExchangeFactors& f = dispatch ? factors.dispatch : factors.combine;
  if (exchange.transport == Transport::Ll) sms = low_latency_blocks(exchange.shape->moe.routed_experts, sms);
  const ExchangeSpec spec{.transport = exchange.transport,
                          .gpu = &machine.gpu,
                          .nic_bytes_per_s = machine.nic_bytes_per_s(),
                          .latency_s = latency_beyond(machine.fabric),
                          .sms = sms,
                          .near_peers = exchange.near_peers,
                          .far_peers = exchange.far_peers};
  const ExchangeTime time = exchange_time(traffic, dispatch ? exchange.slowest_dispatch : exchange.slowest_combine,
                                          spec, f, payload_of(*exchange.shape, dispatch), dispatch);
  OpCost cost;
  if (send) {
    cost.time = rounded(time.send);
  } else if (is_recv(kind)) {
    cost.time = rounded(time.recv);
    cost.wire = rounded(time.wire);
  } else if (is_wire(kind)) {
    cost.time = rounded(time.wire);
  } else {
    cost.time = rounded(time.whole);
    cost.beside = rounded(time.whole * std::max(f.beside, 1.0));
    cost.notify = dispatch ? rounded(time.notify) : Ns{};
  }
  cost.demand.port_bytes = whole(send ? time.send_port_bytes : time.wire_port_bytes);
  cost.demand.hbm_bytes = whole(collective ? time.whole_hbm_bytes : send ? time.send_hbm_bytes : time.recv_hbm_bytes);
  cost.demand.sms = sms;
  cost.demand.cooperative = exchange.transport == Transport::Ht && collective;
  return cost;
}

}  // namespace dbo
