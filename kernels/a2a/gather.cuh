// Rank-major combine: for each token, the rows of the ranks that served it, added in fp32 in ascending rank, from +0,
// and rounded once to bf16. Rows are pulled from the peers' output areas (lsa-ht) or read where copies put them.
#pragma once

#include <algorithm>

#include "kernels/a2a/launch_plan.h"
#include "kernels/a2a/signal.cuh"

namespace dbo::kernels::device {

enum class GatherFrom {
  PeerOutputs,  ///< pulled from the peers' memory once they have signalled that it is ready (lsa-ht)
  Copies,       ///< received rows, after waiting for the copies' flags (copy-engine)
  Received      ///< received rows, nothing to wait for (nccl, or arrival was waited for by the stream)
};

struct GatherParams {
  A2aCall call;
  std::byte* out;  ///< [tokens][hidden] bf16
  int tokens;
  int pieces;          ///< a row is cut into this many pieces ...
  int piece_elements;  ///< ... of this many elements (the last one may be shorter), at most kMaxPieceElements
  int stages;          ///< pieces in flight per group
};

/// A block is kGatherGroups groups of 128 threads, each with its own ring of row pieces in shared memory: deep enough
/// that reads over NVLink (about 2 us away) keep the link busy with few SMs.
inline constexpr int kGatherGroups = 3;
inline constexpr int kGroupThreads = 128;
inline constexpr int kGatherThreads = kGatherGroups * kGroupThreads;
inline constexpr int kGatherPasses = 8;
inline constexpr int kMaxPieceElements = kGatherPasses * kGroupThreads * 8;
inline constexpr int kMaxGatherStages = 16;

struct GatherShared {
  std::uint64_t full[kGatherGroups][kMaxGatherStages];
  int last;
};
inline constexpr std::size_t kGatherRingOffset = (sizeof(GatherShared) + 127) / 128 * 128;

template <GatherFrom kFrom>
DBO_DEVICE const std::byte* rows_of(const A2aCall& c, int rank) {
  const A2aLayout& l = c.layout;
  const std::size_t row_bytes = static_cast<std::size_t>(l.dims.hidden) * 2;
  const std::size_t block_bytes = static_cast<std::size_t>(l.dims.max_tokens) * row_bytes;
  if (rank == l.dims.rank)
    return slot_data(c, c.base) + l.outputs.offset + static_cast<std::size_t>(rank) * block_bytes;
  if constexpr (kFrom == GatherFrom::PeerOutputs) {
    return slot_data(c, c.peers[rank]) + l.outputs.offset + static_cast<std::size_t>(source_at(c, rank)) * block_bytes;
  } else {
    return slot_data(c, c.base) + l.combine_rows.offset + static_cast<std::size_t>(rank) * block_bytes;
  }
}

/// Walks the row pieces of a group's units in order and starts their loads. Used by one thread.
template <GatherFrom kFrom>
struct PieceLoader {
  const GatherParams& p;
  const std::uint32_t* route;
  std::uint64_t* full;
  std::byte* ring;
  int unit, step, entry_index = 0;

  DBO_DEVICE void load_next(int stage) {
    const MoeDims& dims = p.call.layout.dims;
    const int units = p.tokens * p.pieces;
    while (unit < units) {
      const int token = unit / p.pieces, piece = unit - token * p.pieces;
      const std::uint32_t entry = entry_index < dims.top_k
                                      ? route[static_cast<std::size_t>(token) * static_cast<std::size_t>(dims.top_k) +
                                              static_cast<std::size_t>(entry_index)]
                                      : kNoRoute;
      if (entry == kNoRoute) {
        unit += step;
        entry_index = 0;
        continue;
      }
      ++entry_index;
      const int first = piece * p.piece_elements;
      const int elements = dims.hidden - first < p.piece_elements ? dims.hidden - first : p.piece_elements;
      const std::byte* const row =
          rows_of<kFrom>(p.call, route_rank(entry)) +
          static_cast<std::size_t>(route_slot(entry)) * static_cast<std::size_t>(dims.hidden) * 2;
      bulk_load(ring + static_cast<std::size_t>(stage) * static_cast<std::size_t>(p.piece_elements) * 2,
                row + static_cast<std::size_t>(first) * 2, static_cast<std::uint32_t>(elements) * 2, full + stage);
      return;
    }
  }
};

DBO_DEVICE void accumulate(float (&sum)[8], const Vec16& v) {
  const std::uint32_t words[4] = {v.x, v.y, v.z, v.w};
  DBO_UNROLL
  for (int i = 0; i < 4; ++i) {
    sum[2 * i] = add(sum[2 * i], low_bf16(words[i]));
    sum[2 * i + 1] = add(sum[2 * i + 1], high_bf16(words[i]));
  }
}

DBO_DEVICE Vec16 round_bf16(const float (&sum)[8]) {
  return {pack_bf16(sum[0], sum[1]), pack_bf16(sum[2], sum[3]), pack_bf16(sum[4], sum[5]), pack_bf16(sum[6], sum[7])};
}

/// All units of one group.
template <GatherFrom kFrom>
DBO_DEVICE void reduce_units(const GatherParams& p, GatherShared& s) {
  const MoeDims& dims = p.call.layout.dims;
  const int group = thread_index() / kGroupThreads, thread = thread_index() % kGroupThreads;
  const auto* const route =
      reinterpret_cast<const std::uint32_t*>(slot_data(p.call, p.call.base) + p.call.layout.route.offset);
  const int first_unit = block_index() * kGatherGroups + group, step = block_count() * kGatherGroups;
  const std::size_t piece_bytes = static_cast<std::size_t>(p.piece_elements) * 2;
  std::byte* const ring = dynamic_smem() + kGatherRingOffset +
                          static_cast<std::size_t>(group) * static_cast<std::size_t>(p.stages) * piece_bytes;
  PieceLoader<kFrom> loader{p, route, s.full[group], ring, first_unit, step};
  if (thread == 0) {
    fence_bulk();  // what the block acquired is to be read by bulk copies
    for (int stage = 0; stage < p.stages; ++stage) loader.load_next(stage);
  }
  int stage = 0;
  std::uint32_t parity = 0;
  for (int unit = first_unit; unit < p.tokens * p.pieces; unit += step) {
    const int token = unit / p.pieces, first = (unit - token * p.pieces) * p.piece_elements;
    const int bytes = (dims.hidden - first < p.piece_elements ? dims.hidden - first : p.piece_elements) * 2;
    float sum[kGatherPasses][8] = {};
    for (int e = 0; e < dims.top_k; ++e) {
      if (route[static_cast<std::size_t>(token) * static_cast<std::size_t>(dims.top_k) + static_cast<std::size_t>(e)] ==
          kNoRoute) {
        break;
      }
      barrier_wait(s.full[group] + stage, parity);
      const std::byte* const piece = ring + static_cast<std::size_t>(stage) * piece_bytes;
      DBO_UNROLL
      for (int pass = 0; pass < kGatherPasses; ++pass) {
        const int at = (pass * kGroupThreads + thread) * 16;
        if (at < bytes) accumulate(sum[pass], load_shared16(piece + at));
      }
      group_sync(1 + group, kGroupThreads);
      if (thread == 0) loader.load_next(stage);
      if (++stage == p.stages) stage = 0, parity ^= 1u;
    }
    std::byte* const out =
        p.out +
        (static_cast<std::size_t>(token) * static_cast<std::size_t>(dims.hidden) + static_cast<std::size_t>(first)) * 2;
    DBO_UNROLL
    for (int pass = 0; pass < kGatherPasses; ++pass) {
      const int at = (pass * kGroupThreads + thread) * 16;
      if (at < bytes) store16(out + at, round_bf16(sum[pass]));
    }
  }
}

template <GatherFrom kFrom>
DBO_KERNEL(kGatherThreads)
gather_kernel(DBO_PARAM GatherParams p) {
  GatherShared& s = *reinterpret_cast<GatherShared*>(dynamic_smem());
  const A2aCall& c = p.call;
  const std::uint32_t epoch = state(c).epoch;
  if (thread_index() == 0) {
    for (int i = 0; i < kGatherGroups * p.stages; ++i) barrier_init(&s.full[i / p.stages][i % p.stages]);
    if (block_index() == 0) report(c, epoch, ProgressStage::Waiting);
  }
  if constexpr (kFrom == GatherFrom::PeerOutputs) {
    // The kernel before this one in the stream wrote the outputs; releasing now publishes them to the peers.
    if (block_index() == 0) {
      signal_peers(c, first_peer(c), c.layout.combine_flag, c.layout.combine_stamp, kArrivalUnits, stamp_now(c));
    }
    wait_for_sources(c, WaitOp::HtCombine, c.layout.combine_flag, kArrivalUnits, epoch);
  } else if constexpr (kFrom == GatherFrom::Copies) {
    wait_for_sources(c, WaitOp::CopyCombine, c.layout.combine_flag, 1, epoch);
    hold_for_sources(c, WaitOp::CopyCombine, c.layout.combine_stamp);
  } else {
    block_sync();
  }
  reduce_units<kFrom>(p, s);
  if (is_last_block(&state(c).combine_blocks, &s.last)) {
    if constexpr (kFrom == GatherFrom::PeerOutputs) hold_for_sources(c, WaitOp::HtCombine, c.layout.combine_stamp);
    if (thread_index() == 0) report(c, epoch, ProgressStage::Done);
  }
}

/// How a gather of valid arguments is launched.
inline LaunchPlan<GatherParams> plan_gather(const CombineArgs& args) {
  const int hidden = args.call.layout.dims.hidden;
  LaunchPlan<GatherParams> plan{
      {args.call, static_cast<std::byte*>(args.out), args.tokens.tokens, 0, 0, 0}, args.call.blocks, kGatherThreads, 0};
  GatherParams& p = plan.params;
  // Pieces of about equal length, so that no group gets short ones by habit.
  p.pieces = (hidden + kMaxPieceElements - 1) / kMaxPieceElements;
  p.piece_elements = (hidden / kScaleBlock + p.pieces - 1) / p.pieces * kScaleBlock;
  const std::size_t stage_bytes = static_cast<std::size_t>(kGatherGroups * p.piece_elements) * 2;
  p.stages =
      static_cast<int>(std::min<std::size_t>((kMaxSharedBytes - kGatherRingOffset) / stage_bytes, kMaxGatherStages));
  plan.shared_bytes = std::max(kWholeSmBytes, kGatherRingOffset + static_cast<std::size_t>(p.stages) * stage_bytes);
  return plan;
}

}  // namespace dbo::kernels::device
