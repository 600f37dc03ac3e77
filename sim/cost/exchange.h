// What dispatch and combine take, by transport: bytes over ports, SMs that move them, floors.
#pragma once

#include <vector>

#include "sim/cost/factors.h"
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
  /// Pairwise flows: seconds until the last byte into this rank is there, and until the last into or out of it is
  /// moved. Below 0: ports are priced by their loads.
  double flows_in_s = -1, flows_s = -1;
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
  double send_port_bytes = 0, wire_port_bytes = 0;  ///< near data that the send stores; what the wire carries
  double wire_link_bytes = 0, wire_nic_bytes = 0;   ///< of that, over the scale-up port and over the NIC
  double send_hbm_bytes = 0, recv_hbm_bytes = 0, whole_hbm_bytes = 0;
  double wire_hbm_bytes = 0;  ///< read for others and written by others meanwhile
};

/// `payload`: bytes of one token. `traffic`: this rank's of the dispatch; a combine moves the same the other way.
PortBytes port_bytes(const RankTraffic& traffic, Transport transport, double payload, int near_peers, int far_peers);

/// When the data of one exchange is moved if its flows share the ports max-min fairly, all begun together. [ranks]
/// seconds: into the rank, and into or out of it. `load` with pairs; `spec` as for any rank (sms are not read).
struct FlowSeconds {
  std::vector<double> in, all;
};
FlowSeconds flow_seconds(const RoutedLoad& load, int domain, const ExchangeSpec& spec, const ExchangeFactors& factors,
                         double payload, bool dispatch);

/// Blocks of DeepEP's low-latency kernels, one an SM: each takes as many experts as it must.
int low_latency_blocks(int experts, int sms);

/// `slowest`: the port bytes of the rank with most to send, whose data everybody waits for.
ExchangeTime exchange_time(const RankTraffic& traffic, const PortBytes& slowest, const ExchangeSpec& spec,
                           const ExchangeFactors& factors, double payload, bool dispatch);

}  // namespace dbo
