// The all-to-all kernels themselves, run on the CPU (emulation/simt.h): every transport's dispatch and combine against
// the reference, with few SMs and drawn thread orders.
#include "tests/kernels/emulation/simt.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>

#include "kernels/a2a/copy_arrival.cuh"
#include "kernels/a2a/gather.cuh"
#include "kernels/a2a/low_latency.cuh"
#include "kernels/a2a/scatter.cuh"
#include "tests/kernels/a2a_rig.h"

namespace dbo::a2a_test {
namespace {

using kernels::A2aCall;
using kernels::A2aLayout;
using kernels::ElementType;
namespace dev = kernels::device;

std::size_t at(int i) {
  return static_cast<std::size_t>(i);
}

template <typename Params>
simt::Grid grid_of(const kernels::LaunchPlan<Params>& plan, void (*kernel)(const Params)) {
  return {plan.blocks, plan.threads, plan.shared_bytes, [kernel, params = plan.params] { kernel(params); }};
}

/// Ranks whose buffers are host memory.
class EmulatedRig final : public Rig {
 public:
  explicit EmulatedRig(simt::Options options) : options_(options) {}

  std::string prepare(const Case& c, const std::vector<A2aLayout>& layouts) override {
    case_ = c;
    players_.clear();
    players_.resize(layouts.size());
    for (std::size_t i = 0; i < layouts.size(); ++i) {
      Player& p = players_[i];
      p.layout = layouts[i];
      // Window bases are 4096-aligned; so is this.
      p.memory.assign(layouts[i].total_bytes + 4096, std::byte{0});
      const auto address = reinterpret_cast<std::uintptr_t>(p.memory.data());
      p.base = p.memory.data() + (4096 - address % 4096) % 4096;
      p.out.assign(at(c.shape.dims.max_tokens) * at(c.shape.dims.hidden) + 16, 0xa5a5);
    }
    for (std::size_t i = 0; i < layouts.size(); ++i) {
      for (int rank = 0; rank < c.shape.dims.ranks; ++rank) {
        const bool own = rank == layouts[i].dims.rank;
        const std::size_t other = !c.mirrored ? at(rank) : own ? i : (i + 1) % players_.size();
        players_[i].peers.push_back(players_[other].base);
      }
    }
    return {};
  }

  std::string set_tokens(int player, const TokenData& data) override {
    Player& p = players_[at(player)];
    p.data = data;
    p.rows.assign(data.rows.size() + 16, 0);
    const auto address = reinterpret_cast<std::uintptr_t>(p.rows.data());
    p.aligned = p.rows.data() + (16 - address % 16) % 16 / 2;
    std::copy(data.rows.begin(), data.rows.end(), p.aligned);
    std::fill(p.out.begin(), p.out.end(), 0xa5a5);
    return {};
  }

  std::string set_rows(const std::vector<std::vector<std::int32_t>>& send,
                       const std::vector<std::vector<std::int32_t>>& receive) override {
    send_ = send;
    receive_ = receive;
    return {};
  }

  std::string dispatch(int slot) override {
    std::vector<simt::Queue> queues(players_.size());
    for (std::size_t i = 0; i < players_.size(); ++i) enqueue_dispatch(queues[i], i, slot);
    std::string fault = run(queues);
    if (case_.shape.transport == Transport::Nccl && fault.empty()) {
      for (std::size_t i = 0; i < players_.size(); ++i) copy(i, slot, true);
      for (std::size_t i = 0; i < players_.size(); ++i) unpack(i, slot);
    }
    return fault;
  }

  std::string combine(int slot) override {
    std::vector<simt::Queue> queues(players_.size());
    for (std::size_t i = 0; i < players_.size() && case_.shape.transport == Transport::Nccl; ++i) copy(i, slot, false);
    for (std::size_t i = 0; i < players_.size(); ++i) enqueue_combine(queues[i], i, slot);
    return run(queues);
  }

  std::vector<std::byte> read(int player) override {
    const Player& p = players_[at(player)];
    return {p.base, p.base + p.layout.total_bytes};
  }
  void write(int player, const std::vector<std::byte>& buffer) override {
    std::copy(buffer.begin(), buffer.end(), players_[at(player)].base);
  }
  std::vector<std::uint16_t> result(int player) override { return players_[at(player)].out; }

  std::uint64_t wire_ns = 0;
  std::uint64_t deadline_ns = 50'000'000;
  std::vector<int> silent;                        ///< players that take no part in the next dispatch
  std::vector<std::vector<std::uint64_t>> times;  ///< of each player's blocks (DispatchArgs), if any

 private:
  struct Player {
    A2aLayout layout;
    std::vector<std::byte> memory;
    std::byte* base = nullptr;
    std::vector<std::byte*> peers;
    TokenData data;
    std::vector<std::uint16_t> rows, out;
    std::uint16_t* aligned = nullptr;
  };

  std::string run(std::vector<simt::Queue>& queues) {
    std::vector<simt::Queue*> pointers;
    for (simt::Queue& q : queues) pointers.push_back(&q);
    options_.seed += 1;
    return simt::run(pointers, options_);
  }

  A2aCall call_of(std::size_t player, int slot) {
    Player& p = players_[player];
    A2aCall call;
    call.layout = p.layout;
    call.base = p.base;
    call.peers = case_.shape.transport == Transport::Nccl ? nullptr : p.peers.data();
    call.mirrored = case_.mirrored;
    call.slot = slot;
    call.blocks = case_.blocks;
    call.deadline_ns = deadline_ns;
    call.wire_ns = wire_ns;
    return call;
  }

  kernels::TokenView tokens_of(std::size_t player) {
    Player& p = players_[player];
    return {p.aligned, p.data.expert.data(), p.data.weight.data(), p.data.tokens};
  }

  template <dev::ScatterTo kTo>
  void scatter(simt::Queue& queue, std::size_t player, int slot) {
    kernels::DispatchArgs args{call_of(player, slot), tokens_of(player), nullptr};
    if (!send_.empty() && kTo != dev::ScatterTo::Peers) args.row_limit = send_[player].data();
    args.tuning = case_.tuning;
    if (!times.empty()) args.times = times[player].data();
    const auto plan = dev::plan_scatter(args);
    REQUIRE(plan.has_value());
    queue.launch(args.call.layout.payload == ElementType::Bf16
                     ? grid_of(*plan, dev::scatter_kernel<kTo, ElementType::Bf16>)
                     : grid_of(*plan, dev::scatter_kernel<kTo, ElementType::Fp8E4m3>));
  }

  int rows(const std::vector<std::vector<std::int32_t>>& counts, std::size_t player, int rank) const {
    return counts.empty() ? case_.shape.dims.max_tokens : counts[player][at(rank)];
  }

  /// The copies of copy-engine and the messages of nccl, as a host action. `dispatch`: else combine.
  void copy(std::size_t player, int slot, bool dispatch) {
    const Player& p = players_[player];
    const A2aLayout& l = p.layout;
    const std::size_t base = kernels::slot_offset(l, slot);
    const std::size_t row = dispatch ? l.row_bytes : kernels::combine_row_bytes(l);
    for (int rank = 0; rank < l.dims.ranks; ++rank) {
      if (rank == l.dims.rank) continue;
      const int source = case_.mirrored ? rank : l.dims.rank;
      const kernels::Area &from = dispatch ? l.stage_rows : l.outputs, &to = dispatch ? l.rows : l.combine_rows;
      const std::size_t block = at(l.dims.max_tokens) * row;
      std::memcpy(p.peers[at(rank)] + base + to.offset + at(source) * block,
                  p.base + base + from.offset + at(rank) * block,
                  at(rows(dispatch ? send_ : receive_, player, rank)) * row);
      std::byte* const peer = p.peers[at(rank)];
      if (case_.shape.transport == Transport::Nccl) {
        if (dispatch) {
          std::memcpy(peer + base + l.recv_meta.offset + at(source) * l.blob.bytes,
                      p.base + base + l.stage_meta.offset + at(rank) * l.blob.bytes, l.blob.bytes);
        }
      } else {
        const std::size_t control = at(slot) * l.control_stride;
        std::memcpy(peer + control + (dispatch ? l.dispatch_flag : l.combine_flag) + at(source) * 4,
                    p.base + control + l.state + offsetof(kernels::A2aState, epoch), 4);
      }
    }
  }

  /// What nccl_unpack.cu does.
  void unpack(std::size_t player, int slot) {
    const Player& p = players_[player];
    const A2aLayout& l = p.layout;
    std::byte* const data = p.base + kernels::slot_offset(l, slot);
    for (int source = 0; source < l.dims.ranks; ++source) {
      if (source == l.dims.rank) continue;
      const std::byte* const blob = data + l.recv_meta.offset + at(source) * l.blob.bytes;
      std::int32_t count = 0;
      std::memcpy(&count, blob + l.blob.count, 4);
      const std::size_t n = at(count), first = at(source) * at(l.dims.max_tokens), top_k = at(l.dims.top_k);
      std::memcpy(data + l.count.offset + at(source) * 4, &count, 4);
      std::memcpy(data + l.source_token.offset + first * 4, blob + l.blob.source_token, n * 4);
      std::memcpy(data + l.expert.offset + first * top_k * 4, blob + l.blob.expert, n * top_k * 4);
      std::memcpy(data + l.weight.offset + first * top_k * 4, blob + l.blob.weight, n * top_k * 4);
      if (l.payload == ElementType::Fp8E4m3) {
        const std::size_t blocks = at(l.dims.hidden / kernels::kScaleBlock);
        std::memcpy(data + l.scales.offset + first * blocks * 4, blob + l.blob.scales, n * blocks * 4);
      }
    }
  }

  void enqueue_dispatch(simt::Queue& queue, std::size_t player, int slot) {
    if (std::find(silent.begin(), silent.end(), static_cast<int>(player)) != silent.end()) return;
    const A2aCall call = call_of(player, slot);
    switch (case_.shape.transport) {
      case Transport::LsaHt:
        scatter<dev::ScatterTo::Peers>(queue, player, slot);
        break;
      case Transport::LsaLl: {
        const auto plan = dev::plan_low_latency(call, tokens_of(player), nullptr);
        queue.launch(call.layout.payload == ElementType::Bf16
                         ? grid_of(plan, dev::ll_dispatch_send_kernel<ElementType::Bf16>)
                         : grid_of(plan, dev::ll_dispatch_send_kernel<ElementType::Fp8E4m3>));
        queue.launch({1, dev::kReceiveThreads, 0, [=] { dev::ll_dispatch_receive_kernel(call); }});
        break;
      }
      case Transport::CopyEngine:
        scatter<dev::ScatterTo::Copies>(queue, player, slot);
        queue.host([=, this] { copy(player, slot, true); });
        queue.launch({1, dev::kArrivalThreads, 0, [=] { dev::copy_arrival_kernel(call); }});
        break;
      case Transport::Nccl:
        scatter<dev::ScatterTo::Blobs>(queue, player, slot);
        break;
      default:
        FAIL("simulated-only transport");
    }
  }

  void enqueue_combine(simt::Queue& queue, std::size_t player, int slot) {
    kernels::CombineArgs args{call_of(player, slot), tokens_of(player), players_[player].out.data()};
    switch (case_.shape.transport) {
      case Transport::LsaHt:
        queue.launch(grid_of(dev::plan_gather(args), dev::gather_kernel<dev::GatherFrom::PeerOutputs>));
        break;
      case Transport::LsaLl: {
        queue.launch(grid_of(dev::plan_low_latency(args.call, {}, nullptr), dev::ll_combine_send_kernel));
        queue.launch(grid_of(dev::plan_low_latency(args.call, args.tokens, args.out), dev::ll_combine_receive_kernel));
        break;
      }
      case Transport::CopyEngine:
        queue.launch({1, dev::kArrivalThreads, 0, [=] { dev::copy_combine_stamp_kernel(args.call); }});
        queue.host([=, this] { copy(player, slot, false); });
        queue.launch(grid_of(dev::plan_gather(args), dev::gather_kernel<dev::GatherFrom::Copies>));
        break;
      case Transport::Nccl:
        queue.launch(grid_of(dev::plan_gather(args), dev::gather_kernel<dev::GatherFrom::Received>));
        break;
      default:
        FAIL("simulated-only transport");
    }
  }

  simt::Options options_;
  Case case_;
  std::vector<Player> players_;
  std::vector<std::vector<std::int32_t>> send_, receive_;
};

constexpr Transport kTransports[] = {Transport::LsaHt, Transport::LsaLl, Transport::CopyEngine, Transport::Nccl};
constexpr ElementType kPayloads[] = {ElementType::Bf16, ElementType::Fp8E4m3};

Case basic_case(Transport transport, ElementType payload) {
  Case c;
  c.name = std::string(transport_info(transport).name) + (payload == ElementType::Bf16 ? " bf16" : " fp8");
  c.shape.dims = {.ranks = 2, .rank = 0, .experts_per_rank = 4, .top_k = 3, .hidden = 256, .max_tokens = 40};
  c.shape.payload = payload;
  c.shape.transport = transport;
  c.tokens = {37, 40};
  return c;
}

/// Runs with as few SMs as the spinning rule of call.h allows.
void check(const Case& c, int rounds = 3) {
  INFO(c.name);
  EmulatedRig rig({.sms = players(c) * c.blocks, .seed = c.seed});
  CHECK(run_case(rig, c, rounds) == "");
}

TEST_CASE("a2a emulated: every transport delivers and combines, slots in turn") {
  for (Transport transport : kTransports) {
    for (ElementType payload : kPayloads) {
      Case c = basic_case(transport, payload);
      for (std::uint64_t seed = 1; seed <= 3; ++seed) {
        c.seed = seed;
        c.values = seed == 2 ? Values::Random : Values::Integers;
        check(c, seed == 1 ? 3 : 1);
      }
    }
  }
}

TEST_CASE("a2a emulated: routing extremes") {
  for (Transport transport : kTransports) {
    for (Routing routing : {Routing::OneExpert, Routing::OneRank, Routing::Holes, Routing::Dense}) {
      Case c = basic_case(transport, routing == Routing::Holes ? ElementType::Fp8E4m3 : ElementType::Bf16);
      c.routing = routing;
      c.blocks = 3;
      check(c, 1);
    }
  }
}

TEST_CASE("a2a emulated: ranks without tokens, and more blocks than tokens") {
  for (Transport transport : kTransports) {
    Case c = basic_case(transport, ElementType::Bf16);
    c.shape.dims.ranks = 3;
    c.blocks = 3;
    for (const std::vector<int>& tokens : {std::vector<int>{0, 4, 1}, std::vector<int>{0, 0, 0}}) {
      c.tokens = tokens;
      check(c, 2);
    }
  }
}

TEST_CASE("a2a emulated: top-k from 1 to 11") {
  for (Transport transport : kTransports) {
    for (int top_k = 1; top_k <= kernels::kA2aMaxTopK; ++top_k) {
      Case c = basic_case(transport, top_k % 2 == 0 ? ElementType::Bf16 : ElementType::Fp8E4m3);
      c.shape.dims.experts_per_rank = 7;
      c.shape.dims.top_k = top_k;
      c.shape.dims.hidden = 128;
      c.tokens = {21, 13};
      c.routing = Routing::Holes;
      check(c, 1);
    }
  }
}

TEST_CASE("a2a emulated: hidden sizes") {
  for (Transport transport : kTransports) {
    for (int hidden : {128, 2048, 2176, 5120, 7168, 8320}) {
      Case c = basic_case(transport, hidden % 512 == 0 ? ElementType::Bf16 : ElementType::Fp8E4m3);
      c.shape.dims.hidden = hidden;
      c.shape.dims.max_tokens = 9;
      c.tokens = {9, 4};
      c.blocks = 1;
      check(c, 1);
    }
  }
}

TEST_CASE("a2a emulated: one rank, five ranks, and more ranks than a warp has lanes") {
  for (Transport transport : kTransports) {
    for (int ranks : {1, 5, 33}) {
      // The mirrored exchange below has more ranks than lanes too, with fewer threads; nccl has none.
      if (ranks == 33 && transport != Transport::Nccl) continue;
      Case c = basic_case(transport, ElementType::Bf16);
      c.shape.dims.ranks = ranks;
      c.shape.dims.experts_per_rank = 3;
      c.shape.dims.top_k = 2;
      c.shape.dims.hidden = 128;
      c.shape.dims.max_tokens = 9;
      c.tokens.assign(at(ranks), 9);
      c.tokens[0] = 4;
      c.blocks = 1;
      check(c, 1);
    }
  }
}

TEST_CASE("a2a emulated: one or two buffers play all ranks of a mirrored exchange") {
  for (Transport transport : {Transport::LsaHt, Transport::LsaLl, Transport::CopyEngine}) {
    for (ElementType payload : kPayloads) {
      for (int number : {1, 2}) {
        Case c = basic_case(transport, payload);
        c.shape.dims.ranks = 40;
        c.shape.dims.rank = 3;
        c.shape.dims.experts_per_rank = 2;
        c.shape.dims.top_k = 6;
        c.shape.dims.hidden = 128;
        c.shape.dims.max_tokens = 12;
        c.mirrored = true;
        c.tokens.assign(at(number), 12);
        check(c, 2);
      }
    }
  }
}

TEST_CASE("a2a emulated: padded messages carry the same rows") {
  for (Transport transport : {Transport::CopyEngine, Transport::Nccl}) {
    Case c = basic_case(transport, ElementType::Fp8E4m3);
    c.exact_rows = false;
    check(c);
  }
}

TEST_CASE("a2a emulated: many tokens in one block, and a long slot count") {
  Case c = basic_case(Transport::LsaHt, ElementType::Bf16);
  c.shape.dims.hidden = 128;
  c.shape.dims.max_tokens = 1300;
  c.tokens = {1300, 1111};
  for (int blocks : {1, 3}) {
    c.blocks = blocks;
    check(c, 1);
  }
}

TEST_CASE("a2a emulated: results do not depend on how rows are kept in flight") {
  Case c = basic_case(Transport::LsaHt, ElementType::Bf16);
  for (int stages : {2, 3}) {
    c.tuning.stages = stages;
    check(c, 2);
  }
}

TEST_CASE("a2a emulated: some blocks send to other ranks, the rest move own rows") {
  for (ElementType payload : kPayloads) {
    for (const auto& [blocks, wire] : {std::pair{3, 1}, std::pair{4, 3}, std::pair{3, 7}}) {
      Case c = basic_case(Transport::LsaHt, payload);
      c.shape.dims.ranks = 3;
      c.tokens = {37, 40, 0};
      c.routing = Routing::Holes;
      c.blocks = blocks;
      c.tuning.wire_blocks = wire;  // 7 of 3 blocks: all but one
      check(c, 2);
    }
  }
  // By themselves: 16 of 24 blocks, both parts with more blocks than one of the ranks has tokens.
  Case c = basic_case(Transport::LsaHt, ElementType::Bf16);
  c.tokens = {5, 19};
  c.shape.dims.hidden = 128;
  c.blocks = 24;
  check(c, 1);
}

TEST_CASE("a2a emulated: every block notes when it entered, knew its routes, had moved its rows and ended") {
  for (ElementType payload : kPayloads) {
    Case c = basic_case(Transport::LsaHt, payload);
    c.blocks = 3;
    c.tuning.wire_blocks = 1;
    EmulatedRig rig({.sms = players(c) * c.blocks, .seed = c.seed});
    rig.times.assign(2, std::vector<std::uint64_t>(at(c.blocks * kernels::kScatterTimes), 0));
    REQUIRE(run_case(rig, c, 1) == "");
    for (const std::vector<std::uint64_t>& times : rig.times) {
      for (std::size_t i = 0; i < times.size(); ++i) {
        CHECK(times[i] > 0);
        if (i % kernels::kScatterTimes != 0) CHECK(times[i] >= times[i - 1]);
      }
    }
  }
}

TEST_CASE("a2a emulated: an emulated wire delays the receive, not the data") {
  for (Transport transport : {Transport::LsaHt, Transport::LsaLl, Transport::CopyEngine}) {
    Case c = basic_case(transport, ElementType::Bf16);
    EmulatedRig rig({.sms = 4, .seed = 5});
    rig.wire_ns = 300'000;
    INFO(c.name);
    CHECK(run_case(rig, c, 1) == "");
  }
}

TEST_CASE("a2a emulated: the own send travels too where one GPU plays many ranks, and only there") {
  // The own stamp is now, all others are long ago: a receive among real ranks ends at once, one among played ranks
  // holds.
  Case c = basic_case(Transport::CopyEngine, ElementType::Bf16);
  const A2aLayout layout = kernels::make_a2a_layout(c.shape);
  for (const bool mirrored : {false, true}) {
    std::vector<std::byte> memory(layout.total_bytes);
    A2aCall call;
    call.layout = layout;
    call.base = memory.data();
    call.mirrored = mirrored;
    call.deadline_ns = 1'000'000;
    call.wire_ns = 300'000;
    std::uint64_t begin = 0, end = 0;
    simt::Queue queue;
    queue.launch({1, 32, 0, [&] {
                    if (dev::thread_index() == 0) {
                      begin = dev::global_time_ns();
                      dev::control<std::uint64_t>(call, call.base, layout.combine_stamp)[layout.dims.rank] = begin;
                    }
                    dev::block_sync();
                    dev::copy_hold_kernel(call, kernels::WaitOp::CopyCombine, layout.combine_stamp);
                    if (dev::thread_index() == 0) end = dev::global_time_ns();
                  }});
    REQUIRE(simt::run({&queue}, {.sms = 1, .seed = 3}) == "");
    INFO("mirrored ", mirrored, ", held ", end - begin);
    CHECK((end - begin >= call.wire_ns) == mirrored);
  }
}

TEST_CASE("a2a emulated: a rank that never sends is named by the deadline") {
  for (Transport transport : {Transport::LsaHt, Transport::LsaLl, Transport::CopyEngine}) {
    Case c = basic_case(transport, ElementType::Bf16);
    EmulatedRig rig({.sms = 4, .seed = 5});
    rig.deadline_ns = 1'000'000;
    rig.silent = {1};
    const std::string fault = run_case(rig, c, 1);
    CHECK_MESSAGE(fault.find("on rank 0, slot 0, waited for rank 1: epoch 1 expected, 0 seen") != std::string::npos,
                  fault);
  }
}

}  // namespace
}  // namespace dbo::a2a_test
