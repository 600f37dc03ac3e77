#include "sim/cost/exchange.h"

#include <algorithm>
#include <cmath>

namespace dbo {
namespace {

bool sends_copies(Transport transport) {
  return !transport_info(transport).dedup_per_rank;
}

/// DeepEP's kernels send one copy to each far node and pass it on over NVLink there.
bool two_level(Transport transport) {
  return transport == Transport::Ht;
}

double over(double bytes, double rate) {
  return rate > 0 ? bytes / rate : 0;
}

/// What a rank's scale-up links carry to its peers: behind a switch all of it, in a mesh one link a peer.
double link_rate(const ExchangeSpec& spec) {
  return std::min(spec.gpu->link_bytes_per_s, std::max(spec.near_peers, 1) * spec.gpu->peer_link_bytes_per_s);
}

/// Ports of the whole exchange, each at the share of its rate that the transport reaches.
double port_seconds(const PortBytes& bytes, const ExchangeSpec& spec, const ExchangeFactors& f) {
  return std::max(over(bytes.near, link_rate(spec) * f.link), over(bytes.far, spec.nic_bytes_per_s * f.nic));
}

void comm_kernel(ExchangeTime& time, const PortBytes& own, const PortBytes& all, const ExchangeSpec& spec,
                 const ExchangeFactors& f, double tokens) {
  const double sms = std::max(spec.sms, 1);
  const double moved =
      over(own.handled_near, sms * f.sm_near_bytes_per_s) + over(own.handled_far, sms * f.sm_far_bytes_per_s);
  const double floor = spec.far_peers > 0 ? f.far_floor_s + spec.latency_s : f.near_floor_s;
  time.data_floor = floor;
  time.sm_seconds = moved;
  time.whole = floor + std::max(port_seconds(all, spec, f), moved);
  if (f.notify_s > 0) {
    time.notify = time.data_after = f.notify_s + f.notify_s_per_token * tokens;
    time.whole += time.notify;
  }
}

/// The send kernel stores near data itself and posts far data to the NIC, which starts on it at once.
/// `paced`: the rank's own bytes at its ports' pace; posting takes `posted` bytes' time.
void send_and_receive(ExchangeTime& time, const PortBytes& paced, double posted, const PortBytes& all,
                      const ExchangeSpec& spec, const ExchangeFactors& f) {
  const double sms = std::max(spec.sms, 1);
  const double link = link_rate(spec) * f.link;
  // Without a rate of its own, an SM moves its part of what all of them reach.
  const double near_rate = f.sm_near_bytes_per_s > 0 ? std::min(link, sms * f.sm_near_bytes_per_s)
                                                     : link * std::min(sms / spec.gpu->sms, 1.0);
  time.data_after = f.send_floor_s;
  time.send = f.send_floor_s + over(paced.near, near_rate) + over(posted, sms * f.sm_far_bytes_per_s);
  time.wire = time.data_floor = f.near_floor_s;
  if (spec.far_peers > 0) {
    const double port = over(all.far, spec.nic_bytes_per_s * f.nic);
    time.data_floor = f.far_floor_s + spec.latency_s;
    time.wire = time.data_floor + std::max(f.send_floor_s + port - time.send, 0.0);
  }
}

/// Pack, copies by copy engines, unpack: the copies start when the pack ends.
void copy_engines(ExchangeTime& time, const RankTraffic& traffic, const PortBytes& all, const ExchangeSpec& spec,
                  const ExchangeFactors& f, double payload) {
  const double copies = traffic.ranks_self + traffic.ranks_out_near + traffic.ranks_out_far;
  time.send = f.send_floor_s + over((traffic.tokens + copies) * payload, spec.gpu->hbm_bytes_per_s * f.recv_hbm);
  time.data_floor = spec.far_peers > 0 ? f.far_floor_s + spec.latency_s : f.near_floor_s;
  time.wire = time.data_floor + port_seconds(all, spec, f);
}

}  // namespace

PortBytes larger(const PortBytes& a, const PortBytes& b) {
  return {std::max(a.near, b.near), std::max(a.far, b.far), std::max(a.handled_near, b.handled_near),
          std::max(a.handled_far, b.handled_far)};
}

PortBytes at_pace(PortBytes bytes, double factor) {
  bytes.near *= factor;
  bytes.far *= factor;
  return bytes;
}

PortBytes port_bytes(const RankTraffic& t, Transport transport, double payload, int near_peers, int far_peers) {
  PortBytes bytes;
  if (transport_info(transport).padded) {
    // A slot for every token at every peer.
    bytes.near = bytes.handled_near = t.tokens * near_peers * payload;
    bytes.far = bytes.handled_far = t.tokens * far_peers * payload;
  } else if (sends_copies(transport)) {
    bytes.near = std::max(t.copies_out_near, t.copies_in_near) * payload;
    bytes.far = std::max(t.copies_out_far, t.copies_in_far) * payload;
    bytes.handled_near = (t.copies_self + t.copies_out_near) * payload;
    bytes.handled_far = t.copies_out_far * payload;
  } else if (two_level(transport)) {
    bytes.near = std::max(t.ranks_out_near + t.forward_out, t.ranks_in_near + t.forward_in) * payload;
    bytes.far = std::max(t.rail_out, t.rail_in) * payload;
    // Far tokens whose way ends at the gate itself are copied there too.
    const double gate = t.ranks_in_far - t.forward_in;
    bytes.handled_near = (t.ranks_self + t.ranks_out_near + t.forward_out + std::max(gate, 0.0)) * payload;
    bytes.handled_far = t.rail_out * payload;
  } else {
    bytes.near = std::max(t.ranks_out_near, t.ranks_in_near) * payload;
    bytes.far = std::max(t.ranks_out_far, t.ranks_in_far) * payload;
    bytes.handled_near = (t.ranks_self + t.ranks_out_near) * payload;
    bytes.handled_far = t.ranks_out_far * payload;
  }
  return bytes;
}

namespace {

/// In 2^-20 bytes at the port's full rate, of which the transport reaches a share.
std::int64_t flow_work(double bytes, double share) {
  return static_cast<std::int64_t>(std::min(std::ceil(bytes / share * 0x1p20), 0x1p62));
}

/// What a flow reads at its sender and writes at its receiver of a port's full rate.
std::int32_t flow_hbm(const ExchangeSpec& spec, double share) {
  if (spec.hbm_bytes_per_s <= 0) return 0;
  return static_cast<std::int32_t>(std::min(std::round(share * 1e9 / spec.hbm_bytes_per_s * 0x1p32), 0x1p30));
}

/// Near data is the send kernel's own work.
bool stores_near(Transport transport) {
  return sends_copies(transport) && transport != Transport::CopyEngine;
}

}  // namespace

std::vector<PairFlow> pair_flows(const RoutedLoad& load, int domain, const ExchangeSpec& spec, const ExchangeFactors& f,
                                 double payload, bool dispatch) {
  const auto ranks = static_cast<std::int32_t>(load.ranks.size());
  const bool padded = transport_info(spec.transport).padded, copies = sends_copies(spec.transport);
  std::vector<PairFlow> flows;
  for (std::int32_t from = 0; from < ranks; ++from)
    for (std::int32_t to = 0; to < ranks; ++to) {
      const bool near = from / domain == to / domain;
      if (from == to || (near && stores_near(spec.transport))) continue;
      // A combine takes the same ways back.
      const PairTraffic& pair = load.pairs[static_cast<std::size_t>(dispatch ? from * ranks + to : to * ranks + from)];
      double tokens = copies ? pair.copies : pair.ranks;
      if (padded) {
        tokens = load.ranks[static_cast<std::size_t>(dispatch ? from : to)].tokens;
      } else if (two_level(spec.transport)) {
        tokens = near ? pair.ranks + pair.forward : pair.rail;
      }
      if (tokens <= 0) continue;
      const std::int32_t base = near ? 0 : 2 * ranks;
      const double share = near ? f.link : f.nic;
      flows.push_back(
          {from, to, base + from, base + ranks + to, flow_work(tokens * payload, share), flow_hbm(spec, share)});
    }
  return flows;
}

std::vector<PairFlow> alike_flows(const PortBytes& bytes, const ExchangeSpec& spec, const ExchangeFactors& f) {
  std::vector<PairFlow> flows;
  if (bytes.near > 0 && !stores_near(spec.transport))
    flows.push_back({0, 0, 0, 1, flow_work(bytes.near, f.link), flow_hbm(spec, f.link)});
  if (bytes.far > 0) flows.push_back({0, 0, 2, 3, flow_work(bytes.far, f.nic), flow_hbm(spec, f.nic)});
  return flows;
}

std::vector<std::int64_t> port_rates(int ranks, const ExchangeSpec& spec, const Pace& pace) {
  std::vector<std::int64_t> rates;
  for (const double bytes_per_s : {link_rate(spec), link_rate(spec), spec.nic_bytes_per_s, spec.nic_bytes_per_s})
    for (int rank = 0; rank < ranks; ++rank)
      rates.push_back(std::max<std::int64_t>(1, std::llround(bytes_per_s / 1e9 / pace.wire(rank) * 0x1p20)));
  return rates;
}

int low_latency_blocks(int experts, int sms) {
  const int groups = std::max((experts + sms - 1) / sms, 1);
  return std::max((experts + groups - 1) / groups, 1);
}

namespace {

/// What comes into the rank alone; a combine takes the dispatch's ways back.
PortBytes incoming(RankTraffic traffic, const ExchangeSpec& spec, double payload, bool dispatch) {
  if (dispatch) {
    traffic.copies_out_near = traffic.copies_out_far = traffic.ranks_out_near = traffic.ranks_out_far = 0;
  } else {
    traffic.copies_in_near = traffic.copies_in_far = traffic.ranks_in_near = traffic.ranks_in_far = 0;
  }
  return at_pace(port_bytes(traffic, spec.transport, payload, spec.near_peers, spec.far_peers), spec.wire_factor);
}

}  // namespace

ExchangeTime exchange_time(const RankTraffic& traffic, const SlowestPorts& slowest, const ExchangeSpec& spec,
                           const ExchangeFactors& f, double payload, bool dispatch) {
  const PortBytes own = port_bytes(traffic, spec.transport, payload, spec.near_peers, spec.far_peers);
  const PortBytes paced = at_pace(own, spec.wire_factor), all = larger(paced, slowest.paced);
  const PortBytes wire = spec.flows ? incoming(traffic, spec, payload, dispatch) : all;
  const bool copies = sends_copies(spec.transport);
  ExchangeTime time;
  // What the receive reads and writes: a dispatch copies what arrived into place, a combine adds a token's parts up.
  const double parts = copies ? traffic.copies_self + traffic.copies_out_near + traffic.copies_out_far
                              : traffic.ranks_self + traffic.ranks_out_near + traffic.ranks_out_far;
  const double arrived = copies ? traffic.copies_self + traffic.copies_in_near + traffic.copies_in_far
                                : traffic.ranks_self + traffic.ranks_in_near + traffic.ranks_in_far;
  const double received = (dispatch ? 2 * arrived : parts + traffic.tokens) * payload;
  time.recv = f.recv_floor_s + over(received, spec.gpu->hbm_bytes_per_s * f.recv_hbm);
  if (spec.transport == Transport::CopyEngine) {
    copy_engines(time, traffic, wire, spec, f, payload);
    time.data_after = time.send;
    time.whole = time.send + time.wire + time.recv;
  } else if (copies) {
    send_and_receive(time, paced, own.far, wire, spec, f);
  } else {
    comm_kernel(time, own, all, spec, f, traffic.tokens);
  }
  // Between domains the NIC is the port that matters; whatever NVLink carries besides is quicker.
  const bool far = spec.far_peers > 0;
  const bool stored = copies && spec.transport != Transport::CopyEngine;
  time.send_port_bytes = stored ? own.near : 0;
  time.wire_port_bytes = far ? own.far : stored ? 0 : own.near;
  time.wire_link_bytes = stored ? 0 : own.near;
  time.wire_nic_bytes = own.far;
  time.wire_hbm_bytes = 2 * (time.wire_link_bytes + time.wire_nic_bytes);
  time.send_hbm_bytes = own.near + own.far;
  time.recv_hbm_bytes = received;
  time.whole_hbm_bytes = f.hbm_per_byte * (own.near + own.far);
  if (slowest.paced.near > slowest.loaded.near || slowest.paced.far > slowest.loaded.far) {
    const ExchangeTime even = exchange_time(traffic, {slowest.loaded, slowest.loaded}, spec, f, payload, dispatch);
    time.wire_for_peers = time.wire - even.wire;
    time.whole_for_peers = time.whole - even.whole;
  }
  return time;
}

}  // namespace dbo
