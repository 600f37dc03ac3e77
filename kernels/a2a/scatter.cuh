// Token rows to the ranks that hold their experts, one row per (token, rank), into fixed slots: the body of the lsa-ht
// dispatch (slots in the peer's memory, then arrival) and of the copy-engine and nccl packs (slots in send buffers).
#pragma once

#include <algorithm>

#include "kernels/a2a/launch_plan.h"
#include "kernels/a2a/quantise.cuh"
#include "kernels/a2a/scatter_route.cuh"

namespace dbo::kernels::device {

/// Experts, weights and token indices of the share by warps `warp`, `warp` + `warps`, ...: 32 / top_k tokens at a
/// time, so that consecutive slots are written by consecutive lanes.
template <ScatterTo kTo>
DBO_DEVICE void write_metadata(const ScatterParams& p, const ScatterShare& share, int warp, int warps) {
  const MoeDims& dims = p.call.layout.dims;
  const std::uint32_t* const route = route_table(p.call);
  const int per_warp = 32 / dims.top_k;
  const int sub = lane_index() / dims.top_k, k = lane_index() % dims.top_k;
  for (int chunk = share.begin + warp * per_warp; chunk < share.end; chunk += warps * per_warp) {
    const int token = chunk + sub;
    if (sub >= per_warp || token >= share.end) continue;
    const std::size_t at = static_cast<std::size_t>(token) * static_cast<std::size_t>(dims.top_k);
    const int expert = p.tokens.expert[at + static_cast<std::size_t>(k)];
    const float weight = p.tokens.weight[at + static_cast<std::size_t>(k)];
    const int expert_rank = expert < 0 ? -1 : p.expert_ranks.rank_of(expert);
    for (int e = 0; e < dims.top_k; ++e) {
      const std::uint32_t entry = route[at + static_cast<std::size_t>(e)];
      if (entry == kNoRoute) break;
      const int rank = route_rank(entry);
      if (!share.takes(p.call, rank)) continue;
      const RowTarget target = target_of<kTo>(p.call, rank);
      const std::size_t cell = static_cast<std::size_t>(route_slot(entry)) * static_cast<std::size_t>(dims.top_k) +
                               static_cast<std::size_t>(k);
      const bool here = expert_rank == rank;
      target.expert[cell] = here ? expert - rank * dims.experts_per_rank : -1;
      target.weight[cell] = here ? weight : 0.0f;
      if (k == 0) target.source_token[route_slot(entry)] = token;
    }
  }
}

/// One mover warp's ring of bf16 rows in shared memory. Used by lane 0 alone.
struct RowRing {
  std::uint64_t* full;
  std::byte* rows;
  const std::byte* source;
  std::uint32_t row_bytes;
  int stages, begin, end;  ///< the mover's tokens: begin, begin + kMoverWarps, ... < end

  /// Starts the load of the mover's token number `index`.
  DBO_DEVICE void load(int index, int stage) const {
    const int token = begin + index * kMoverWarps;
    if (token < end) {
      bulk_load(rows + static_cast<std::size_t>(stage) * row_bytes,
                source + static_cast<std::size_t>(token) * row_bytes, row_bytes, full + stage);
    }
  }
};

DBO_DEVICE RowRing start_ring(const ScatterParams& p, const ScatterShare& share, ScatterShared& s) {
  const int warp = warp_index();
  const auto row_bytes = static_cast<std::uint32_t>(p.call.layout.row_bytes);
  RowRing ring{s.full[warp],
               dynamic_smem() + kScatterRingOffset +
                   static_cast<std::size_t>(warp) * static_cast<std::size_t>(p.stages) * row_bytes,
               static_cast<const std::byte*>(p.tokens.rows),
               row_bytes,
               p.stages,
               share.begin + warp,
               share.end};
  for (int stage = 0; stage < p.stages; ++stage) barrier_init(ring.full + stage);
  fence_bulk();
  for (int stage = 0; stage < p.stages; ++stage) ring.load(stage, stage);
  return ring;
}

/// Rows to their slots: each is loaded once and stored once per destination.
template <ScatterTo kTo>
DBO_DEVICE void move_rows(const ScatterParams& p, const ScatterShare& share, const RowRing& ring) {
  const auto top_k = static_cast<std::size_t>(p.call.layout.dims.top_k);
  const std::uint32_t* const route = route_table(p.call);
  int stage = 0, index = 0;
  std::uint32_t parity = 0;
  for (int token = ring.begin; token < ring.end; token += kMoverWarps, ++index) {
    barrier_wait(ring.full + stage, parity);
    fence_bulk();
    for (std::size_t e = 0; e < top_k; ++e) {
      const std::uint32_t entry = route[static_cast<std::size_t>(token) * top_k + e];
      if (entry == kNoRoute) break;
      if (!share.takes(p.call, route_rank(entry))) continue;
      std::byte* const rows = target_of<kTo>(p.call, route_rank(entry)).rows;
      bulk_store(rows + static_cast<std::size_t>(route_slot(entry)) * ring.row_bytes,
                 ring.rows + static_cast<std::size_t>(stage) * ring.row_bytes, ring.row_bytes);
    }
    bulk_commit();
    // Refill the stage of the row before: its stores had a row's time to read it.
    if (index > 0) {
      bulk_wait_read<1>();
      ring.load(index - 1 + ring.stages, stage == 0 ? ring.stages - 1 : stage - 1);
    }
    if (++stage == ring.stages) stage = 0, parity ^= 1u;
  }
  bulk_wait_written<0>();
}

/// The quantising warp's walk over the pieces of its rows.
struct QuantWalk {
  int token, first;

  DBO_DEVICE void advance(int hidden) {
    first += kQuantElements;
    if (first < hidden) return;
    first = 0;
    token += kScatterWarps;
  }
  DBO_DEVICE QuantInput load(const ScatterParams& p) const {
    const int hidden = p.call.layout.dims.hidden;
    const std::byte* const rows = static_cast<const std::byte*>(p.tokens.rows);
    return load_quant_input(rows + static_cast<std::size_t>(token) * static_cast<std::size_t>(hidden) * 2, first,
                            hidden);
  }
};

/// fp8: a warp quantises a row piece by piece and stores each to all destinations; the next piece's loads are on their
/// way while it stores.
template <ScatterTo kTo>
DBO_DEVICE void move_quantised(const ScatterParams& p, const ScatterShare& share) {
  const MoeDims& dims = p.call.layout.dims;
  const std::size_t top_k = static_cast<std::size_t>(dims.top_k), hidden = static_cast<std::size_t>(dims.hidden);
  const std::uint32_t* const route = route_table(p.call);
  QuantWalk next{share.begin + warp_index(), 0};
  QuantInput input;
  if (next.token < share.end) input = next.load(p);
  for (int token = share.begin + warp_index(); token < share.end; token += kScatterWarps) {
    const std::size_t at = static_cast<std::size_t>(token) * top_k;
    const std::uint32_t entry =
        lane_index() < dims.top_k ? route[at + static_cast<std::size_t>(lane_index())] : kNoRoute;
    std::uint64_t row_address = 0, scale_address = 0;
    const bool taken = entry != kNoRoute && share.takes(p.call, route_rank(entry));
    if (taken) {
      const RowTarget target = target_of<kTo>(p.call, route_rank(entry));
      const auto slot = static_cast<std::size_t>(route_slot(entry));
      row_address = reinterpret_cast<std::uint64_t>(target.rows + slot * hidden);
      scale_address = reinterpret_cast<std::uint64_t>(target.scales + slot * (hidden / kScaleBlock));
    }
    const std::uint32_t copies = warp_ballot(taken);
    for (int first = 0; first < dims.hidden; first += kQuantElements) {
      const QuantPiece piece = quantise_piece(input);
      next.advance(dims.hidden);
      if (next.token < share.end) input = next.load(p);
      for (std::uint32_t left = copies; left != 0; left &= left - 1) {
        const int lane = bit_count((left - 1) & ~left);  // its lowest bit
        store_piece(piece, reinterpret_cast<std::byte*>(warp_shuffle(row_address, lane)),
                    reinterpret_cast<float*>(warp_shuffle(scale_address, lane)), first, dims.hidden);
      }
    }
  }
}

/// What the last block of a scatter does: lsa-ht waits for all sources; the packs only leave the epoch (and, for an
/// emulated wire, the time) that the copies will carry.
template <ScatterTo kTo>
DBO_DEVICE void finish_scatter(const ScatterParams& p, std::uint32_t epoch) {
  const A2aCall& c = p.call;
  if constexpr (kTo == ScatterTo::Peers) {
    if (thread_index() == 0) report(c, epoch, ProgressStage::Waiting);
    wait_for_sources(c, WaitOp::HtDispatch, c.layout.dispatch_flag, kArrivalUnits, epoch);
    hold_for_sources(c, WaitOp::HtDispatch, c.layout.dispatch_stamp);
  } else if constexpr (kTo == ScatterTo::Copies) {
    const std::uint64_t now = global_time_ns();
    for (int rank = thread_index(); rank < c.layout.dims.ranks && c.wire_ns > 0; rank += block_threads()) {
      store_release(control<std::uint64_t>(c, c.peers[rank], c.layout.dispatch_stamp) + source_at(c, rank), now);
    }
  }
  if (thread_index() == 0) {
    state(c).epoch = epoch;
    report(c, epoch, kTo == ScatterTo::Peers ? ProgressStage::Done : ProgressStage::Sent);
  }
}

DBO_DEVICE void mark_time(const ScatterParams& p, ScatterTime what) {
  if (p.times != nullptr && thread_index() == 0) {
    p.times[block_index() * kScatterTimes + static_cast<int>(what)] = global_time_ns();
  }
}

template <ScatterTo kTo, ElementType kPayload>
DBO_KERNEL(kScatterThreads)
scatter_kernel(DBO_PARAM ScatterParams p) {
  ScatterShared& s = *reinterpret_cast<ScatterShared*>(dynamic_smem());
  const std::uint32_t epoch = state(p.call).epoch + 1;
  std::byte* const first = kTo == ScatterTo::Peers ? first_peer(p.call) : nullptr;
  // An emulated wire counts from when this rank entered the kernel.
  const std::uint64_t stamp = block_index() == 0 ? stamp_now(p.call) : 0;
  if (block_index() == 0 && thread_index() == 0) report(p.call, epoch, ProgressStage::Entered);
  mark_time(p, ScatterTime::Entered);
  const ScatterShare share = share_of(p);
  if constexpr (kPayload == ElementType::Bf16) {
    RowRing ring{};
    const bool mover = warp_index() < kMoverWarps && lane_index() == 0;
    if (mover) ring = start_ring(p, share, s);  // the first rows travel while the slots are counted
    warp_sync();
    build_route<kTo>(p, share.begin, share.end, s);
    mark_time(p, ScatterTime::Routed);
    if (mover) move_rows<kTo>(p, share, ring);
    warp_sync();
    if (warp_index() >= kMoverWarps) {
      write_metadata<kTo>(p, share, warp_index() - kMoverWarps, kScatterWarps - kMoverWarps);
    }
  } else {
    build_route<kTo>(p, share.begin, share.end, s);
    mark_time(p, ScatterTime::Routed);
    write_metadata<kTo>(p, share, warp_index(), kScatterWarps);
    move_quantised<kTo>(p, share);
  }
  block_sync();
  mark_time(p, ScatterTime::Moved);
  if constexpr (kTo == ScatterTo::Peers) {
    signal_peers(p.call, first, p.call.layout.dispatch_flag, p.call.layout.dispatch_stamp, arrival_share(), stamp);
  }
  if (is_last_block(&state(p.call).dispatch_blocks, &s.last)) finish_scatter<kTo>(p, epoch);
  mark_time(p, ScatterTime::Ended);
}

/// bf16: from 24 blocks on, 16 send to other ranks and the rest move the rank's own rows. Where all do both, stores to
/// the own memory wait behind the full link: on 2x H200 (NVLink 18, 2026-11-30, `bench a2a`, 4096 tokens a rank, hidden
/// 7168) a dispatch took 185 us instead of 196 at 24 and 199 at 32 blocks. At 16 blocks all are needed on the link: 191
/// us together, 207 and more apart. fp8 rows are quantised by who sends them: apart, both would do it (170 us and more
/// instead of 107).
inline constexpr int kWireBlocks = 16;
inline constexpr int kSplitFrom = 24;

inline int wire_blocks_of(const DispatchArgs& args) {
  const A2aLayout& layout = args.call.layout;
  if (layout.transport != Transport::LsaHt || layout.dims.ranks == 1) return 0;
  if (args.tuning.wire_blocks >= 0) return std::min(args.tuning.wire_blocks, args.call.blocks - 1);
  if (layout.payload != ElementType::Bf16 || args.call.blocks < kSplitFrom) return 0;
  return kWireBlocks;
}

/// How a scatter of valid arguments is launched; nothing when a row is too large for the ring (hidden above 14,000 or
/// so).
inline std::optional<LaunchPlan<ScatterParams>> plan_scatter(const DispatchArgs& args) {
  const A2aLayout& layout = args.call.layout;
  const bool wide =
      layout.dims.top_k % 4 == 0 && reinterpret_cast<std::uintptr_t>(args.tokens.expert) % sizeof(Vec16) == 0;
  LaunchPlan<ScatterParams> plan{{args.call, args.tokens, ExpertRanks(layout.dims.experts_per_rank), 0, wide,
                                  wire_blocks_of(args), args.row_limit, args.times},
                                 args.call.blocks,
                                 kScatterThreads,
                                 kWholeSmBytes};
  if (layout.payload == ElementType::Fp8E4m3) return plan;
  const std::size_t stages = (kMaxSharedBytes - kScatterRingOffset) / (kMoverWarps * layout.row_bytes);
  if (stages < 2) return std::nullopt;
  plan.params.stages = static_cast<int>(std::min<std::size_t>(stages, kMaxStages));
  if (args.tuning.stages != 0) plan.params.stages = std::clamp(args.tuning.stages, 2, plan.params.stages);
  const std::size_t rows = kMoverWarps * static_cast<std::size_t>(plan.params.stages);
  plan.shared_bytes = std::max(kWholeSmBytes, kScatterRingOffset + rows * layout.row_bytes);
  return plan;
}

}  // namespace dbo::kernels::device
