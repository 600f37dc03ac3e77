// Which slot each row of a scatter goes to, and where its destination's rows and metadata lie (scatter.cuh).
#pragma once

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
  int wire_blocks;                ///< ScatterTuning, chosen
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

/// What a block moves: of the tokens [begin, end) the rows to other ranks, to its own, or both.
struct ScatterShare {
  int begin, end;
  bool remote, own;

  DBO_DEVICE bool takes(const A2aCall& c, int rank) const { return rank == c.layout.dims.rank ? own : remote; }
};

/// With wire blocks, the first of all blocks: they go to different parts of the GPU.
DBO_DEVICE ScatterShare share_of(const ScatterParams& p) {
  const bool split = p.wire_blocks > 0, wire = block_index() < p.wire_blocks;
  const int index = split && !wire ? block_index() - p.wire_blocks : block_index();
  const int blocks = !split ? block_count() : wire ? p.wire_blocks : block_count() - p.wire_blocks;
  const std::int64_t tokens = p.tokens.tokens;
  return {static_cast<int>(tokens * index / blocks), static_cast<int>(tokens * (index + 1) / blocks), !split || wire,
          !split || !wire};
}

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
/// slots are the same in every run. (Two blocks that share a range write the same entries, and each reads its own.) The
/// last block, whose range ends the tokens, also delivers the counts. By the whole block.
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

}  // namespace dbo::kernels::device
