// Token rows to the ranks that hold their experts, one row per (token, rank), into fixed slots: the body of the lsa-ht
// dispatch (slots in the peer's memory, then arrival) and of the copy-engine and nccl packs (slots in send buffers).
#pragma once

#include <algorithm>

#include "kernels/a2a/launch_plan.h"
#include "kernels/a2a/quantise.cuh"
#include "kernels/a2a/signal.cuh"

namespace dbo::kernels::device {

enum class ScatterTo {
  Peers,   ///< everything straight into the peers' views; ends with the exchange of arrivals (lsa-ht)
  Copies,  ///< rows of remote ranks into the send buffer, the rest straight into the peers' views (copy-engine)
  Blobs    ///< rows and metadata of remote ranks into send buffers; no peer pointer is used (nccl)
};

struct ScatterParams {
  A2aCall call;
  TokenView tokens;
  ExpertRanks expert_ranks;
  int stages;                     ///< bf16: rows in flight per mover warp
  bool wide_choices;              ///< a token's choices can be loaded 16 bytes at a time
  bool settle;                    ///< ScatterTuning
  const std::int32_t* row_limit;  ///< [ranks] rows the call was sized for, or null
  std::uint64_t* times;           ///< DispatchArgs
};

inline constexpr int kScatterThreads = 512;
inline constexpr int kScatterWarps = kScatterThreads / 32;
/// bf16: warps that move rows through shared memory with bulk copies; the others write the metadata meanwhile.
inline constexpr int kMoverWarps = 4;
inline constexpr int kMaxStages = 16;

struct ScatterShared {
  std::uint64_t full[kMoverWarps][kMaxStages];
  int partial[kScatterWarps][32];
  int base[32];
  int last;
};
inline constexpr std::size_t kScatterRingOffset = (sizeof(ScatterShared) + 127) / 128 * 128;

/// Where one destination's rows and metadata begin: slot s of the destination is element s of each.
struct RowTarget {
  std::byte* rows;
  float* scales;
  std::int32_t* expert;
  float* weight;
  std::int32_t* source_token;
  std::int32_t* count;
};

DBO_DEVICE RowTarget view_target(const A2aCall& c, std::byte* base, int source) {
  const A2aLayout& l = c.layout;
  const std::size_t first = static_cast<std::size_t>(source) * static_cast<std::size_t>(l.dims.max_tokens);
  std::byte* const slot = slot_data(c, base);
  return {
      slot + l.rows.offset + first * l.row_bytes,
      reinterpret_cast<float*>(slot + l.scales.offset) + first * static_cast<std::size_t>(l.dims.hidden / kScaleBlock),
      reinterpret_cast<std::int32_t*>(slot + l.expert.offset) + first * static_cast<std::size_t>(l.dims.top_k),
      reinterpret_cast<float*>(slot + l.weight.offset) + first * static_cast<std::size_t>(l.dims.top_k),
      reinterpret_cast<std::int32_t*>(slot + l.source_token.offset) + first,
      reinterpret_cast<std::int32_t*>(slot + l.count.offset) + source};
}

template <ScatterTo kTo>
DBO_DEVICE RowTarget target_of(const A2aCall& c, int rank) {
  const A2aLayout& l = c.layout;
  if (rank == l.dims.rank) return view_target(c, c.base, rank);
  std::byte* const own = slot_data(c, c.base);
  RowTarget target;
  if constexpr (kTo == ScatterTo::Blobs) {
    std::byte* const blob = own + l.stage_meta.offset + static_cast<std::size_t>(rank) * l.blob.bytes;
    target = {nullptr,
              reinterpret_cast<float*>(blob + l.blob.scales),
              reinterpret_cast<std::int32_t*>(blob + l.blob.expert),
              reinterpret_cast<float*>(blob + l.blob.weight),
              reinterpret_cast<std::int32_t*>(blob + l.blob.source_token),
              reinterpret_cast<std::int32_t*>(blob + l.blob.count)};
  } else {
    target = view_target(c, c.peers[rank], source_at(c, rank));
  }
  if constexpr (kTo != ScatterTo::Peers) {
    target.rows = own + l.stage_rows.offset +
                  static_cast<std::size_t>(rank) * static_cast<std::size_t>(l.dims.max_tokens) * l.row_bytes;
  }
  return target;
}

/// The experts a token chose, -1 beyond top_k. All loads of one or more tokens are on their way before the first is
/// used.
struct Choices {
  std::int32_t expert[(kA2aMaxTopK + 3) / 4 * 4];
};

DBO_DEVICE Choices load_choices(const ScatterParams& p, int token, bool exists) {
  const int top_k = p.call.layout.dims.top_k;
  const std::int32_t* const experts =
      p.tokens.expert + static_cast<std::size_t>(exists ? token : 0) * static_cast<std::size_t>(top_k);
  constexpr int kMost = static_cast<int>(sizeof(Choices) / sizeof(std::int32_t));
  Choices c;
  if (p.wide_choices) {
    DBO_UNROLL
    for (int k = 0; k < kMost; k += 4) {
      const bool some = exists && k < top_k;
      const Vec16 v = some ? load_stream(experts + k) : Vec16{~0u, ~0u, ~0u, ~0u};
      c.expert[k] = static_cast<std::int32_t>(v.x);
      c.expert[k + 1] = static_cast<std::int32_t>(v.y);
      c.expert[k + 2] = static_cast<std::int32_t>(v.z);
      c.expert[k + 3] = static_cast<std::int32_t>(v.w);
    }
  } else {
    DBO_UNROLL
    for (int k = 0; k < kMost; ++k) c.expert[k] = exists && k < top_k ? experts[k] : -1;
  }
  return c;
}

/// Bit i: one of the experts is on rank first_rank + i.
DBO_DEVICE std::uint32_t rank_mask(const ScatterParams& p, const Choices& c, int first_rank) {
  std::uint32_t mask = 0;
  DBO_UNROLL
  for (int k = 0; k < kA2aMaxTopK; ++k) {
    const int bit = c.expert[k] < 0 ? -1 : p.expert_ranks.rank_of(c.expert[k]) - first_rank;
    if (bit >= 0 && bit < 32) mask |= 1u << bit;
  }
  return mask;
}

/// Lane r of `width` gets the number of lanes whose mask has bit r.
DBO_DEVICE int count_by_rank(std::uint32_t mask, int width) {
  int count = 0;
  for (int r = 0; r < width; ++r) {
    const int n = bit_count(warp_ballot(((mask >> r) & 1u) != 0));
    if (lane_index() == r) count = n;
  }
  return count;
}

DBO_DEVICE std::uint32_t* route_table(const A2aCall& c) {
  return reinterpret_cast<std::uint32_t*>(slot_data(c, c.base) + c.layout.route.offset);
}

/// Lane r of `width` gets the number of tokens before `end` that go to rank first_rank + r and are this warp's to
/// count.
DBO_DEVICE int count_earlier(const ScatterParams& p, int end, int first_rank, int width) {
  constexpr int kAhead = 4;  ///< choices of so many chunks of tokens are loaded at once: a load takes about 1 us
  int earlier = 0;
  for (int chunk = warp_index() * 32; chunk < end; chunk += kAhead * kScatterThreads) {
    Choices c[kAhead];
    DBO_UNROLL
    for (int i = 0; i < kAhead; ++i) {
      const int token = chunk + i * kScatterThreads + lane_index();
      c[i] = load_choices(p, token, token < end);
    }
    DBO_UNROLL
    for (int i = 0; i < kAhead; ++i) earlier += count_by_rank(rank_mask(p, c[i], first_rank), width);
  }
  return earlier;
}

/// Writes the route entries of tokens [begin, end), where the slot at a rank is the number of earlier tokens that go
/// there: every block counts those before its own range by itself, so that blocks need not wait for each other and
/// slots are the same in every run. The last block also delivers the counts. By the whole block.
template <ScatterTo kTo>
DBO_DEVICE void build_route(const ScatterParams& p, int begin, int end, ScatterShared& s) {
  const MoeDims& dims = p.call.layout.dims;
  const int lane = lane_index(), warp = warp_index();
  std::uint32_t* const route = route_table(p.call);
  for (int first_rank = 0; first_rank < dims.ranks; first_rank += 32) {
    const int width = dims.ranks - first_rank < 32 ? dims.ranks - first_rank : 32;
    const bool last_group = first_rank + 32 >= dims.ranks;
    Choices own = load_choices(p, begin + thread_index(), begin + thread_index() < end);
    s.partial[warp][lane] = count_earlier(p, begin, first_rank, width);
    block_sync();
    if (warp == 0) {
      int sum = 0;
      for (int w = 0; w < kScatterWarps; ++w) sum += s.partial[w][lane];
      s.base[lane] = sum;
    }
    block_sync();
    for (int chunk = begin; chunk < end; chunk += kScatterThreads) {
      const int token = chunk + thread_index();
      if (chunk != begin) own = load_choices(p, token, token < end);
      const std::uint32_t mask = rank_mask(p, own, first_rank);
      s.partial[warp][lane] = count_by_rank(mask, width);
      block_sync();
      int before = s.base[lane], total = before;
      for (int w = 0; w < kScatterWarps; ++w) {
        const int n = s.partial[w][lane];
        if (w < warp) before += n;
        total += n;
      }
      std::uint32_t* const entries = route + static_cast<std::size_t>(token) * static_cast<std::size_t>(dims.top_k);
      int position = 0;
      for (int r = 0; r < first_rank; r += 32) position += bit_count(rank_mask(p, own, r));
      for (int r = 0; r < width; ++r) {
        const bool goes = ((mask >> r) & 1u) != 0;
        const std::uint32_t all = warp_ballot(goes);
        const int start = warp_shuffle(before, r);
        if (goes) entries[position++] = pack_route(first_rank + r, start + bit_count(all & ((1u << lane) - 1u)));
      }
      if (token < end && last_group) {
        while (position < dims.top_k) entries[position++] = kNoRoute;
      }
      block_sync();
      if (warp == 0) s.base[lane] = total;
      block_sync();
    }
    if (block_index() == block_count() - 1 && warp == 0 && lane < width) {
      const int rank = first_rank + lane, rows = s.base[lane];
      if (p.row_limit != nullptr && rows > p.row_limit[rank]) {
        fail_rows(dims.rank, p.call.slot, rank, rows, p.row_limit[rank]);
      }
      *target_of<kTo>(p.call, rank).count = rows;
    }
    block_sync();
  }
}

/// Experts, weights and token indices of [begin, end) by warps `warp`, `warp` + `warps`, ...: 32 / top_k tokens at a
/// time, so that consecutive slots are written by consecutive lanes.
template <ScatterTo kTo>
DBO_DEVICE void write_metadata(const ScatterParams& p, int begin, int end, int warp, int warps) {
  const MoeDims& dims = p.call.layout.dims;
  const std::uint32_t* const route = route_table(p.call);
  const int per_warp = 32 / dims.top_k;
  const int sub = lane_index() / dims.top_k, k = lane_index() % dims.top_k;
  for (int chunk = begin + warp * per_warp; chunk < end; chunk += warps * per_warp) {
    const int token = chunk + sub;
    if (sub >= per_warp || token >= end) continue;
    const std::size_t at = static_cast<std::size_t>(token) * static_cast<std::size_t>(dims.top_k);
    const int expert = p.tokens.expert[at + static_cast<std::size_t>(k)];
    const float weight = p.tokens.weight[at + static_cast<std::size_t>(k)];
    const int expert_rank = expert < 0 ? -1 : p.expert_ranks.rank_of(expert);
    for (int e = 0; e < dims.top_k; ++e) {
      const std::uint32_t entry = route[at + static_cast<std::size_t>(e)];
      if (entry == kNoRoute) break;
      const int rank = route_rank(entry);
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

DBO_DEVICE RowRing start_ring(const ScatterParams& p, int begin, int end, ScatterShared& s) {
  const int warp = warp_index();
  const auto row_bytes = static_cast<std::uint32_t>(p.call.layout.row_bytes);
  RowRing ring{s.full[warp],
               dynamic_smem() + kScatterRingOffset +
                   static_cast<std::size_t>(warp) * static_cast<std::size_t>(p.stages) * row_bytes,
               static_cast<const std::byte*>(p.tokens.rows),
               row_bytes,
               p.stages,
               begin + warp,
               end};
  for (int stage = 0; stage < p.stages; ++stage) barrier_init(ring.full + stage);
  fence_bulk();
  for (int stage = 0; stage < p.stages; ++stage) ring.load(stage, stage);
  return ring;
}

/// Rows to their slots: each is loaded once and stored once per destination.
template <ScatterTo kTo>
DBO_DEVICE void move_rows(const ScatterParams& p, const RowRing& ring) {
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
      std::byte* const rows = target_of<kTo>(p.call, route_rank(entry)).rows;
      bulk_store(rows + static_cast<std::size_t>(route_slot(entry)) * ring.row_bytes,
                 ring.rows + static_cast<std::size_t>(stage) * ring.row_bytes, ring.row_bytes);
    }
    bulk_commit();
    // Refill the stage of the row before: its stores had a row's time to read it.
    if (index > 0) {
      if (p.settle) {
        bulk_wait_written<1>();
      } else {
        bulk_wait_read<1>();
      }
      ring.load(index - 1 + ring.stages, stage == 0 ? ring.stages - 1 : stage - 1);
    }
    if (++stage == ring.stages) stage = 0, parity ^= 1u;
  }
  bulk_wait_written<0>();
}

/// fp8: a warp quantises a row and stores it to each destination.
template <ScatterTo kTo>
DBO_DEVICE void move_quantised(const ScatterParams& p, int begin, int end) {
  const MoeDims& dims = p.call.layout.dims;
  const std::size_t top_k = static_cast<std::size_t>(dims.top_k), hidden = static_cast<std::size_t>(dims.hidden);
  const std::uint32_t* const route = route_table(p.call);
  for (int token = begin + warp_index(); token < end; token += kScatterWarps) {
    const std::size_t at = static_cast<std::size_t>(token) * top_k;
    const std::uint32_t entry =
        lane_index() < dims.top_k ? route[at + static_cast<std::size_t>(lane_index())] : kNoRoute;
    std::uint64_t row_address = 0, scale_address = 0;
    if (entry != kNoRoute) {
      const RowTarget target = target_of<kTo>(p.call, route_rank(entry));
      const auto slot = static_cast<std::size_t>(route_slot(entry));
      row_address = reinterpret_cast<std::uint64_t>(target.rows + slot * hidden);
      scale_address = reinterpret_cast<std::uint64_t>(target.scales + slot * (hidden / kScaleBlock));
    }
    const int copies = bit_count(warp_ballot(entry != kNoRoute));
    const std::byte* const row =
        static_cast<const std::byte*>(p.tokens.rows) + static_cast<std::size_t>(token) * hidden * 2;
    for (int first = 0; first < dims.hidden; first += kQuantElements) {
      const QuantPiece piece = quantise_piece(load_quant_input(row, first, dims.hidden));
      for (int copy = 0; copy < copies; ++copy) {
        store_piece(piece, reinterpret_cast<std::byte*>(warp_shuffle(row_address, copy)),
                    reinterpret_cast<float*>(warp_shuffle(scale_address, copy)), first, dims.hidden);
      }
    }
  }
}

/// What the last block of a scatter does: lsa-ht exchanges arrivals; the packs only leave the epoch (and, for an
/// emulated wire, the time) that the copies will carry.
template <ScatterTo kTo>
DBO_DEVICE void finish_scatter(const ScatterParams& p, std::uint32_t epoch) {
  const A2aCall& c = p.call;
  A2aState& st = state(c);
  if constexpr (kTo == ScatterTo::Peers) {
    if (thread_index() == 0) report(c, epoch, ProgressStage::Waiting);
    signal_peers(c, first_peer(c), c.layout.dispatch_flag, c.layout.dispatch_stamp, epoch, st.dispatch_start_ns);
    wait_for_sources(c, WaitOp::HtDispatch, c.layout.dispatch_flag, c.layout.dispatch_stamp, epoch, false, true);
  } else if constexpr (kTo == ScatterTo::Copies) {
    const std::uint64_t now = global_time_ns();
    for (int rank = thread_index(); rank < c.layout.dims.ranks && c.wire_ns > 0; rank += block_threads()) {
      store_release(control<std::uint64_t>(c, c.peers[rank], c.layout.dispatch_stamp) + source_at(c, rank), now);
    }
  }
  if (thread_index() == 0) {
    st.epoch = epoch;
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
  if (block_index() == 0 && thread_index() == 0) {
    state(p.call).dispatch_start_ns = global_time_ns();
    report(p.call, epoch, ProgressStage::Entered);
  }
  mark_time(p, ScatterTime::Entered);
  const std::int64_t tokens = p.tokens.tokens;
  const int begin = static_cast<int>(tokens * block_index() / block_count());
  const int end = static_cast<int>(tokens * (block_index() + 1) / block_count());
  if constexpr (kPayload == ElementType::Bf16) {
    RowRing ring{};
    const bool mover = warp_index() < kMoverWarps && lane_index() == 0;
    if (mover) ring = start_ring(p, begin, end, s);  // the first rows travel while the slots are counted
    warp_sync();
    build_route<kTo>(p, begin, end, s);
    mark_time(p, ScatterTime::Routed);
    if (mover) move_rows<kTo>(p, ring);
    warp_sync();
    if (warp_index() >= kMoverWarps) {
      write_metadata<kTo>(p, begin, end, warp_index() - kMoverWarps, kScatterWarps - kMoverWarps);
    }
  } else {
    build_route<kTo>(p, begin, end, s);
    mark_time(p, ScatterTime::Routed);
    write_metadata<kTo>(p, begin, end, warp_index(), kScatterWarps);
    move_quantised<kTo>(p, begin, end);
  }
  if (p.times != nullptr) block_sync();
  mark_time(p, ScatterTime::Moved);
  if (is_last_block(&state(p.call).dispatch_blocks, &s.last)) finish_scatter<kTo>(p, epoch);
  mark_time(p, ScatterTime::Ended);
}

/// How a scatter of valid arguments is launched; nothing when a row is too large for the ring (hidden above 14,000 or
/// so).
inline std::optional<LaunchPlan<ScatterParams>> plan_scatter(const DispatchArgs& args) {
  const A2aLayout& layout = args.call.layout;
  const bool wide =
      layout.dims.top_k % 4 == 0 && reinterpret_cast<std::uintptr_t>(args.tokens.expert) % sizeof(Vec16) == 0;
  LaunchPlan<ScatterParams> plan{{args.call, args.tokens, ExpertRanks(layout.dims.experts_per_rank), 0, wide,
                                  args.tuning.settle, args.row_limit, args.times},
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
