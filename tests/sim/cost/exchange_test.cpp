#include "sim/cost/exchange.h"

#include <doctest/doctest.h>

#include "sim/cost/work.h"
#include "sim/model/presets.h"

using namespace dbo;

namespace {

RoutedLoad routed(int ranks, std::int64_t tokens) {
  Plan plan;
  plan.world = {.ranks = ranks, .ranks_per_node = 8};
  plan.shape = model_preset("deepseek-v3");
  return Router(plan).load(3, std::vector<TokenRange>(static_cast<std::size_t>(ranks), TokenRange{0, tokens}), 8);
}

ExchangeTime time_of(Transport transport, int ranks, std::int64_t tokens, int sms, double nic = 50e9,
                     bool dispatch = true) {
  static const GpuSpec gpu = gpu_preset("h200-sxm");
  const int near = std::min(ranks, 8) - 1;
  const ExchangeSpec spec{.transport = transport,
                          .gpu = &gpu,
                          .nic_bytes_per_s = nic,
                          .latency_s = 0,
                          .sms = sms,
                          .near_peers = near,
                          .far_peers = ranks - 1 - near};
  const TransportFactors& f = default_factors().transport(transport);
  return exchange_time(routed(ranks, tokens).ranks[0], {}, spec, dispatch ? f.dispatch : f.combine,
                       dispatch ? 7392 : 14336, dispatch);
}

}  // namespace

TEST_CASE("exchange: low latency sends a copy for each expert, high throughput one for each rank or far node") {
  // 100 tokens, top-8, 64 ranks on 8 nodes: 56 of 64 ranks are far.
  const RankTraffic t = routed(64, 100).ranks[0];
  const PortBytes ll = port_bytes(t, Transport::Ll, 1, 7, 56);
  CHECK(ll.far == doctest::Approx(100 * 8 * 56.0 / 64));
  CHECK(ll.near == doctest::Approx(100 * 8 * 7.0 / 64));
  // A group on each node and 4 groups a token: 4 of 8 nodes, 3.5 of them far.
  const PortBytes ht = port_bytes(t, Transport::Ht, 1, 7, 56);
  CHECK(ht.far == doctest::Approx(350));
  // One-sided kernels have no second level: every far rank with an expert gets its own.
  const PortBytes lsa = port_bytes(t, Transport::LsaHt, 1, 7, 56);
  CHECK(lsa.far > ht.far);
  CHECK(lsa.far < ll.far);
  // Padded: a slot for every token at every peer.
  const PortBytes padded = port_bytes(t, Transport::Nccl, 1, 7, 56);
  CHECK(padded.far == 5600);
  CHECK(padded.near == 700);
}

TEST_CASE("exchange: the wire of low latency runs while the send kernel does") {
  const ExchangeTime t = time_of(Transport::Ll, 64, 128, 128);
  // 128 * 8 * 7/8 copies of 7392 bytes at 0.98 of 50 GB/s.
  const double port = 128.0 * 8 * 56 / 64 * 7392 / (0.98 * 50e9);
  CHECK(t.send + t.wire == doctest::Approx(6e-6 + port + 12e-6));
  CHECK(t.whole == 0);
  // On one node the send kernel stores the data; only a flag is left to travel.
  CHECK(time_of(Transport::Ll, 8, 1024, 128).wire == doctest::Approx(1e-6));
  CHECK(time_of(Transport::Ll, 8, 1024, 128).send > 100e-6);
}

TEST_CASE("exchange: high throughput speeds up with SMs until a port is full") {
  // One node: 20 SMs fill NVLink; four nodes: 12 to 16 fill the NIC.
  CHECK(time_of(Transport::Ht, 8, 4096, 8).whole > 1.8 * time_of(Transport::Ht, 8, 4096, 16).whole);
  CHECK(time_of(Transport::Ht, 8, 4096, 24).whole == time_of(Transport::Ht, 8, 4096, 32).whole);
  CHECK(time_of(Transport::Ht, 32, 4096, 16).whole == time_of(Transport::Ht, 32, 4096, 24).whole);
  CHECK(time_of(Transport::Ht, 32, 4096, 4).whole > 2 * time_of(Transport::Ht, 32, 4096, 24).whole);
  // What its SMs take of that: nearly all on 4, and a quarter of it on 16, where the port is what counts.
  const ExchangeTime few = time_of(Transport::LsaHt, 8, 4096, 4), most = time_of(Transport::LsaHt, 8, 4096, 16);
  CHECK(few.sm_seconds > 0.95 * few.whole);
  CHECK(most.sm_seconds == doctest::Approx(few.sm_seconds / 4));
  CHECK(most.sm_seconds < 0.6 * most.whole);
  CHECK(time_of(Transport::Ht, 8, 4096, 20).notify > 0);
  CHECK(time_of(Transport::Ht, 8, 4096, 20, 50e9, false).notify == 0);
}

TEST_CASE("exchange: copy engines need no SMs, but carry the padding") {
  const ExchangeTime copies = time_of(Transport::CopyEngine, 8, 4096, 0);
  CHECK(copies.whole == doctest::Approx(copies.send + copies.wire + copies.recv));
  CHECK(copies.wire > 7 * 4096 * 7392.0 / 450e9);
  CHECK(time_of(Transport::LsaHt, 8, 4096, 16).whole < copies.whole);
}

TEST_CASE("exchange: a faster NIC never takes longer, for any transport") {
  for (const TransportInfo& info : transports()) {
    for (const int ranks : {8, 16, 64}) {
      for (const bool dispatch : {true, false}) {
        double last = 1e9;
        for (const double nic : {12.5e9, 25e9, 50e9, 100e9}) {
          const ExchangeTime t = time_of(info.id, ranks, 512, 16, nic, dispatch);
          const double all = t.whole > 0 ? t.whole : t.send + t.wire + t.recv;
          CHECK(all <= last);
          last = all;
        }
      }
    }
  }
}

TEST_CASE("exchange: a byte on the wire is several in memory, by how the transport moves it") {
  // DeepEP's ring: source read, incoming write, ring read, output write. Stored straight into place: the first two. A
  // low-latency call: those two for its send's and wire's bytes, and what its receive reads and writes again.
  for (const int ranks : {8, 32}) {
    CAPTURE(ranks);
    const auto wire_bytes = [&](Transport transport) {
      const PortBytes bytes = port_bytes(routed(ranks, 256).ranks[0], transport, 7392, 7, ranks - 8);
      return bytes.near + bytes.far;
    };
    CHECK(time_of(Transport::Ht, ranks, 256, 20).whole_hbm_bytes == doctest::Approx(4 * wire_bytes(Transport::Ht)));
    CHECK(time_of(Transport::LsaHt, ranks, 256, 20).whole_hbm_bytes ==
          doctest::Approx(2 * wire_bytes(Transport::LsaHt)));
    const ExchangeTime ll = time_of(Transport::Ll, ranks, 256, 132);
    CHECK(ll.send_hbm_bytes == doctest::Approx(wire_bytes(Transport::Ll)));
    // Of 8 copies a token each is read from its slot and written into place, the rank's own too.
    CHECK(ll.recv_hbm_bytes == doctest::Approx(2 * 256 * 8 * 7392.0));
    // Copies are read and written on the way, and packed and unpacked besides.
    const ExchangeTime copies = time_of(Transport::CopyEngine, ranks, 256, 132);
    CHECK(copies.wire_hbm_bytes == doctest::Approx(2 * wire_bytes(Transport::CopyEngine)));
  }
}

TEST_CASE("exchange: in a mesh, two GPUs have one link between them") {
  const auto two = [](std::string_view name) {
    const GpuSpec gpu = gpu_preset(name);
    const ExchangeSpec spec{.transport = Transport::LsaHt,
                            .gpu = &gpu,
                            .nic_bytes_per_s = 50e9,
                            .latency_s = 0,
                            .sms = gpu.sms,
                            .near_peers = 1,
                            .far_peers = 0};
    return exchange_time(routed(2, 4096).ranks[0], {}, spec, default_factors().lsa_ht.dispatch, 7392, true).whole;
  };
  // MI300X: 64 of 448 GB/s; H200: all of 450 behind the switch.
  CHECK(two("mi300x") > 5 * two("h200-sxm"));
}

TEST_CASE("exchange: low-latency kernels have a block an expert, or fewer that take several") {
  CHECK(low_latency_blocks(256, 132) == 128);
  CHECK(low_latency_blocks(128, 132) == 128);
  CHECK(low_latency_blocks(384, 132) == 128);
  CHECK(low_latency_blocks(16, 132) == 16);
}
