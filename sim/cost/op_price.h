// One op's cost on one rank, from what it works on.
#pragma once

#include <vector>

#include "sim/cost/exchange.h"
#include "sim/cost/kernel_time.h"
#include "sim/cost/machine.h"

namespace dbo {

/// A compute op's kernels with their times: what tables of accuracy show.
struct TimedKernel {
  KernelWork work;
  KernelTime time;
};
std::vector<TimedKernel> timed_kernels(OpKind kind, const OpContext& context, const MachineSpec& machine, int sms);

/// An op made of these kernels, timed on `sms` SMs.
OpCost price_kernels(const std::vector<TimedKernel>& kernels, const MachineSpec& machine, int sms);

/// A compute op on `sms` SMs.
OpCost price_compute(OpKind kind, const OpContext& context, const MachineSpec& machine, int sms);

/// One exchange of all ranks: the traffic, and what every rank waits for.
struct Exchange {
  Transport transport = Transport::Ll;
  const ModelShape* shape = nullptr;
  int near_peers = 0, far_peers = 0;
  RoutedLoad load;
  Pace pace;
  SlowestPorts slowest_dispatch, slowest_combine;
  int slowest_rank = 0;  ///< whose ports take longest
  bool flows = false;    ///< its data moves in pairwise flows: ranks are priced by their own ports alone
};
Exchange make_exchange(Transport transport, const ModelShape& shape, int domain, RoutedLoad load,
                       const Pace& pace = {});
/// The flows of one direction, and the ports of all exchanges of this world. `alike`: all ranks are one group;
/// otherwise each is its own and the load has pairs.
std::vector<PairFlow> exchange_flows(const Exchange& exchange, int domain, const MachineSpec& machine, bool dispatch,
                                     bool alike);
std::vector<std::int64_t> exchange_ports(const Exchange& exchange, const MachineSpec& machine, bool alike);

/// One rank's part of a communication op: send, receive with its wire, comm kernel, or copy of the combined tokens.
OpCost price_exchange(OpKind kind, const Exchange& exchange, int rank, const MachineSpec& machine, int sms);

}  // namespace dbo
