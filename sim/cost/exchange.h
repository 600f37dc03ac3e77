// What dispatch and combine take, by transport: bytes over ports, SMs that move them, floors.
#pragma once

#include <vector>

#include "sim/cost/cost_table.h"
#include "sim/cost/factors.h"
#include "sim/cost/pace.h"
#include "sim/model/hardware.h"
#include "sim/plan/routing.h"

namespace dbo {

/// Where an exchange runs.
struct ExchangeSpec {
  Transport transport = Transport::Ll;
  const GpuSpec* gpu = nullptr;
  double nic_bytes_per_s = 0;  ///< of one GPU, one direction
  double latency_s = 0;        ///< between nodes, one way: what the fabric adds to the factors' own, or takes off
  int sms = 0;                 ///< of the kernel that moves data; for copy engines of pack and unpack
  int near_peers = 0, far_peers = 0;
  double wire_factor = 1;      ///< times as long as this rank's ports take for the same bytes
  double hbm_bytes_per_s = 0;  ///< that memory is shared at; 0: it is not
  bool flows = false;          ///< pairwise flows: a wire is what comes in, by no other rank's ports
};

/// Bytes of one exchange over one rank's ports, larger direction.
struct PortBytes {
  double near = 0, far = 0;                  ///< over NVLink, over the NIC
  double handled_near = 0, handled_far = 0;  ///< that the SMs move, the rank's own included
};

/// Times of one rank's half of the exchange, ports free and every other rank as far.
struct ExchangeTime {
  double send = 0, wire = 0, recv = 0;              ///< halves: wire from the end of the send
  double whole = 0;                                 ///< one comm kernel, from the moment every rank has started it
  double notify = 0;                                ///< of that, until the host knows the counts
  double sm_seconds = 0;                            ///< of that, at least: what its SMs take to move the data
  double data_after = 0, data_floor = 0;            ///< pairwise flows: OpCost's, of halves and of a comm kernel alike
  double wire_for_peers = 0, whole_for_peers = 0;   ///< of `wire` and `whole`: because other ranks' ports are slow
  double send_port_bytes = 0, wire_port_bytes = 0;  ///< near data that the send stores; what the wire carries
  double wire_link_bytes = 0, wire_nic_bytes = 0;   ///< of that, over the scale-up port and over the NIC
  double send_hbm_bytes = 0, recv_hbm_bytes = 0, whole_hbm_bytes = 0;
  double wire_hbm_bytes = 0;  ///< read for others and written by others meanwhile
};

/// `payload`: bytes of one token. `traffic`: this rank's of the dispatch; a combine moves the same the other way.
PortBytes port_bytes(const RankTraffic& traffic, Transport transport, double payload, int near_peers, int far_peers);

/// The flows of one exchange among `load`'s ranks, one pair of ports a pair of ranks, at port_rates' ports. `load` with
/// pairs; `spec` as for any rank (sms are not read).
std::vector<PairFlow> pair_flows(const RoutedLoad& load, int domain, const ExchangeSpec& spec,
                                 const ExchangeFactors& factors, double payload, bool dispatch);
/// The same among equal ranks, all of which are group 0: the load of its ports.
std::vector<PairFlow> alike_flows(const PortBytes& bytes, const ExchangeSpec& spec, const ExchangeFactors& factors);
/// Work a nanosecond of every port: scale-up out and in, NIC out and in, each [ranks].
std::vector<std::int64_t> port_rates(int ranks, const ExchangeSpec& spec, const Pace& pace);

/// Blocks of DeepEP's low-latency kernels, one an SM: each takes as many experts as it must.
int low_latency_blocks(int experts, int sms);

/// The larger of each.
PortBytes larger(const PortBytes& a, const PortBytes& b);
/// Bytes that take ports of the machine's pace as long as `bytes` take ones that are `factor` times slower.
PortBytes at_pace(PortBytes bytes, double factor);

/// The port bytes of the ranks with most to move, for which everybody waits.
struct SlowestPorts {
  PortBytes paced;   ///< at their paces
  PortBytes loaded;  ///< at the machine's
};

ExchangeTime exchange_time(const RankTraffic& traffic, const SlowestPorts& slowest, const ExchangeSpec& spec,
                           const ExchangeFactors& factors, double payload, bool dispatch);

}  // namespace dbo
