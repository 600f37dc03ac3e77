// lsa-ll: one row per (token, expert), sent and received by kernels of their own, so that something else can run
// between a send and its receive. Rows land in their final place: the dispatch receive only waits.
#pragma once

#include "kernels/a2a/launch_plan.h"
#include "kernels/a2a/quantise.cuh"
#include "kernels/a2a/signal.cuh"

namespace dbo::kernels::device {

struct LlParams {
  A2aCall call;
  TokenView tokens;
  ExpertRanks expert_ranks;
  std::byte* out;  ///< combine receive: [tokens][hidden] bf16
};

inline constexpr int kLlThreads = 512;
inline constexpr int kLlWarps = kLlThreads / 32;
/// A warp copies this much of a row at a time, all loads in flight at once.
inline constexpr int kCopySteps = 7;
inline constexpr int kCopyBytes = kCopySteps * 512;

struct LlShared {
  int last;
  int warp_total[kLlWarps];
};
/// Combine send: behind LlShared, first row of each (expert, source) cell among all rows, and their total.
inline constexpr std::size_t kLlCellOffset = (sizeof(LlShared) + 127) / 128 * 128;

DBO_DEVICE int ll_warp() {
  return block_index() * kLlWarps + warp_index();
}
DBO_DEVICE int ll_warp_count() {
  return block_count() * kLlWarps;
}

/// Lane k < top_k gets the slot of the token's k-th row: how many earlier tokens chose the same expert.
DBO_DEVICE int earlier_choices(const LlParams& p, int token, int expert) {
  const int lane = lane_index(), top_k = p.call.layout.dims.top_k;
  int experts[kA2aMaxTopK], counts[kA2aMaxTopK];
  DBO_UNROLL
  for (int k = 0; k < kA2aMaxTopK; ++k) {
    experts[k] = warp_shuffle(expert, k);
    counts[k] = 0;
  }
  for (int i = lane; i < token * top_k; i += 32) {
    const int other = p.tokens.expert[i];
    DBO_UNROLL
    for (int k = 0; k < kA2aMaxTopK; ++k) counts[k] += other == experts[k] ? 1 : 0;
  }
  int slot = 0;
  DBO_UNROLL
  for (int k = 0; k < kA2aMaxTopK; ++k) {
    const int sum = warp_sum(counts[k]);
    if (lane == k) slot = sum;
  }
  return slot;
}

/// Copies up to kCopyBytes from `from` to each of the lanes' `targets` that is not 0, at byte `first` of a row of
/// `row_bytes`.
DBO_DEVICE void copy_piece(const std::byte* from, std::uint64_t target, int targets, int first, int row_bytes) {
  Vec16 v[kCopySteps];
  DBO_UNROLL
  for (int step = 0; step < kCopySteps; ++step) {
    const int at = first + step * 512 + lane_index() * 16;
    if (at < row_bytes) v[step] = load_stream(from + at);
  }
  for (int i = 0; i < targets; ++i) {
    auto* const to = reinterpret_cast<std::byte*>(warp_shuffle(target, i));
    if (to == nullptr) continue;
    DBO_UNROLL
    for (int step = 0; step < kCopySteps; ++step) {
      const int at = first + step * 512 + lane_index() * 16;
      if (at < row_bytes) store16(to + at, v[step]);
    }
  }
}

/// One piece of one token's row to all its experts.
template <ElementType kPayload>
DBO_DEVICE void send_token_piece(const LlParams& p, int token, int piece) {
  const A2aLayout& l = p.call.layout;
  const MoeDims& dims = l.dims;
  const int lane = lane_index();
  const int expert = lane < dims.top_k ? p.tokens.expert[token * dims.top_k + lane] : -1;
  const int slot = earlier_choices(p, token, expert);
  std::uint64_t row_address = 0, scale_address = 0;
  if (expert >= 0) {
    const int rank = p.expert_ranks.rank_of(expert);
    const int cell = (expert - rank * dims.experts_per_rank) * dims.ranks + source_at(p.call, rank);
    const std::size_t row =
        static_cast<std::size_t>(cell) * static_cast<std::size_t>(dims.max_tokens) + static_cast<std::size_t>(slot);
    std::byte* const data = slot_data(p.call, p.call.peers[rank]);
    row_address = reinterpret_cast<std::uint64_t>(data + l.rows.offset + row * l.row_bytes);
    scale_address = reinterpret_cast<std::uint64_t>(
        data + l.scales.offset + row * static_cast<std::size_t>(dims.hidden / kScaleBlock) * sizeof(float));
    if (piece == 0) {
      reinterpret_cast<std::int32_t*>(data + l.source_token.offset)[row] = token;
      reinterpret_cast<std::int32_t*>(data + l.source_k.offset)[row] = lane;
    }
  }
  const std::byte* const from = static_cast<const std::byte*>(p.tokens.rows) +
                                static_cast<std::size_t>(token) * static_cast<std::size_t>(dims.hidden) * 2;
  if constexpr (kPayload == ElementType::Bf16) {
    copy_piece(from, row_address, dims.top_k, piece * kCopyBytes, dims.hidden * 2);
  } else {
    const QuantPiece quantised = quantise_piece(from, piece * kQuantElements, dims.hidden);
    for (int k = 0; k < dims.top_k; ++k) {
      auto* const to = reinterpret_cast<std::byte*>(warp_shuffle(row_address, k));
      auto* const scales = reinterpret_cast<float*>(warp_shuffle(scale_address, k));
      if (to != nullptr) store_piece(quantised, to, scales, piece * kQuantElements, dims.hidden);
    }
  }
}

template <ElementType kPayload>
DBO_KERNEL(kLlThreads)
ll_dispatch_send_kernel(DBO_PARAM LlParams p) {
  LlShared& s = *reinterpret_cast<LlShared*>(dynamic_smem());
  const A2aCall& c = p.call;
  const MoeDims& dims = c.layout.dims;
  const std::uint32_t epoch = state(c).epoch + 1;
  if (block_index() == 0 && thread_index() == 0) report(c, epoch, ProgressStage::Entered);
  const int piece_elements = kPayload == ElementType::Bf16 ? kCopyBytes / 2 : kQuantElements;
  const int pieces = (dims.hidden + piece_elements - 1) / piece_elements;
  for (int unit = ll_warp(); unit < p.tokens.tokens * pieces; unit += ll_warp_count()) {
    send_token_piece<kPayload>(p, unit / pieces, unit % pieces);
  }
  // Rows per expert; the warps that had no row begin with these. From the last warp down.
  for (int expert = ll_warp_count() - 1 - ll_warp(); expert < dims.ranks * dims.experts_per_rank;
       expert += ll_warp_count()) {
    int count = 0;
    for (int i = lane_index(); i < p.tokens.tokens * dims.top_k; i += 32) count += p.tokens.expert[i] == expert ? 1 : 0;
    count = warp_sum(count);
    if (lane_index() == 0) {
      const int rank = p.expert_ranks.rank_of(expert);
      auto* const counts = reinterpret_cast<std::int32_t*>(slot_data(c, c.peers[rank]) + c.layout.count.offset);
      counts[(expert - rank * dims.experts_per_rank) * dims.ranks + source_at(c, rank)] = count;
    }
  }
  if (is_last_block(&state(c).dispatch_blocks, &s.last)) {
    signal_peers(c, c.layout.dispatch_flag, c.layout.dispatch_stamp, epoch, global_time_ns());
    if (thread_index() == 0) {
      state(c).epoch = epoch;
      report(c, epoch, ProgressStage::Sent);
    }
  }
}

/// Writes to `cells` the exclusive prefix sums of `counts`, then the total. By the whole block.
DBO_DEVICE void prefix_cells(const std::int32_t* counts, int number, int* cells, LlShared& s) {
  const int per_thread = (number + kLlThreads - 1) / kLlThreads;
  const int begin = thread_index() * per_thread;
  int sum = 0;
  for (int i = begin; i < begin + per_thread && i < number; ++i) sum += counts[i];
  // Scan over the lanes, then over the warps.
  int before = 0;
  for (int lane = 0; lane < 32; ++lane) {
    const int other = warp_shuffle(sum, lane);
    if (lane < lane_index()) before += other;
  }
  if (lane_index() == 31) s.warp_total[warp_index()] = before + sum;
  block_sync();
  for (int w = 0; w < warp_index(); ++w) before += s.warp_total[w];
  for (int i = begin; i < begin + per_thread && i < number; ++i) {
    cells[i] = before;
    before += counts[i];
  }
  if (thread_index() == kLlThreads - 1) cells[number] = before;
  block_sync();
}

/// The cell that row `row` of all rows lies in: the last one that begins at or before it and is not empty.
DBO_DEVICE int cell_of(const int* cells, int number, int row) {
  int low = 0, high = number;  // cells[low] <= row < cells[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (cells[middle] <= row)
      low = middle;
    else
      high = middle;
  }
  return low;
}

/// Expert outputs back to (token, k) cells of the ranks the rows came from.
DBO_KERNEL(kLlThreads)
ll_combine_send_kernel(DBO_PARAM LlParams p) {
  LlShared& s = *reinterpret_cast<LlShared*>(dynamic_smem());
  int* const cells = reinterpret_cast<int*>(dynamic_smem() + kLlCellOffset);
  const A2aCall& c = p.call;
  const A2aLayout& l = c.layout;
  const MoeDims& dims = l.dims;
  const std::uint32_t epoch = state(c).epoch;
  if (block_index() == 0 && thread_index() == 0) report(c, epoch, ProgressStage::Entered);
  const std::byte* const own = slot_data(c, c.base);
  const int number = dims.experts_per_rank * dims.ranks;
  prefix_cells(reinterpret_cast<const std::int32_t*>(own + l.count.offset), number, cells, s);
  const int row_bytes = dims.hidden * 2;
  const int pieces = (row_bytes + kCopyBytes - 1) / kCopyBytes;
  const int units = cells[number] * pieces;
  for (int unit = ll_warp(); unit < units; unit += ll_warp_count()) {
    const int index = unit / pieces, piece = unit - index * pieces;
    const int cell = cell_of(cells, number, index);
    const std::size_t row = static_cast<std::size_t>(cell) * static_cast<std::size_t>(dims.max_tokens) +
                            static_cast<std::size_t>(index - cells[cell]);
    const int source = cell % dims.ranks;
    const int token = reinterpret_cast<const std::int32_t*>(own + l.source_token.offset)[row];
    const int k = reinterpret_cast<const std::int32_t*>(own + l.source_k.offset)[row];
    std::byte* const to = slot_data(c, c.peers[source]) + l.combine_rows.offset +
                          static_cast<std::size_t>(token * dims.top_k + k) * static_cast<std::size_t>(row_bytes);
    copy_piece(own + l.outputs.offset + row * static_cast<std::size_t>(row_bytes), reinterpret_cast<std::uint64_t>(to),
               1, piece * kCopyBytes, row_bytes);
  }
  if (is_last_block(&state(c).combine_blocks, &s.last)) {
    signal_peers(c, l.combine_flag, l.combine_stamp, epoch, global_time_ns());
    if (thread_index() == 0) report(c, epoch, ProgressStage::Sent);
  }
}

/// 256 elements of one token: weight times row, added with fused multiply-adds in fp32 in ascending k, from +0.
DBO_DEVICE void combine_token_piece(const LlParams& p, int token, int first) {
  const A2aLayout& l = p.call.layout;
  const MoeDims& dims = l.dims;
  const int lane = lane_index(), element = first + lane * 8;
  const int expert = lane < dims.top_k ? p.tokens.expert[token * dims.top_k + lane] : -1;
  const float weight = lane < dims.top_k ? p.tokens.weight[token * dims.top_k + lane] : 0.0f;
  const std::uint32_t used = warp_ballot(expert >= 0);
  const std::byte* const rows = slot_data(p.call, p.call.base) + l.combine_rows.offset;
  const std::size_t hidden = static_cast<std::size_t>(dims.hidden);
  Vec16 v[kA2aMaxTopK];
  DBO_UNROLL
  for (int k = 0; k < kA2aMaxTopK; ++k) {
    if (((used >> k) & 1u) != 0 && element < dims.hidden) {
      v[k] = load_arrived(
          rows + (static_cast<std::size_t>(token * dims.top_k + k) * hidden + static_cast<std::size_t>(element)) * 2);
    }
  }
  float sum[8] = {};
  DBO_UNROLL
  for (int k = 0; k < kA2aMaxTopK; ++k) {
    const float w = warp_shuffle(weight, k);
    if (((used >> k) & 1u) != 0) {
      const std::uint32_t words[4] = {v[k].x, v[k].y, v[k].z, v[k].w};
      DBO_UNROLL
      for (int i = 0; i < 4; ++i) {
        sum[2 * i] = multiply_add(w, low_bf16(words[i]), sum[2 * i]);
        sum[2 * i + 1] = multiply_add(w, high_bf16(words[i]), sum[2 * i + 1]);
      }
    }
  }
  if (element < dims.hidden) {
    store16(p.out + (static_cast<std::size_t>(token) * hidden + static_cast<std::size_t>(element)) * 2,
            Vec16{pack_bf16(sum[0], sum[1]), pack_bf16(sum[2], sum[3]), pack_bf16(sum[4], sum[5]),
                  pack_bf16(sum[6], sum[7])});
  }
}

DBO_KERNEL(kLlThreads)
ll_combine_receive_kernel(DBO_PARAM LlParams p) {
  const A2aCall& c = p.call;
  const MoeDims& dims = c.layout.dims;
  const std::uint32_t epoch = state(c).epoch;
  const bool reporter = block_index() == 0 && thread_index() == 0;
  if (reporter) report(c, epoch, ProgressStage::Waiting);
  wait_for_sources(c, WaitOp::LlCombine, c.layout.combine_flag, c.layout.combine_stamp, epoch, false, true);
  const int pieces = (dims.hidden + 255) / 256;
  for (int unit = ll_warp(); unit < p.tokens.tokens * pieces; unit += ll_warp_count()) {
    const int token = unit / pieces;
    combine_token_piece(p, token, (unit - token * pieces) * 256);
  }
  if (reporter) report(c, epoch, ProgressStage::Done);
}

inline constexpr int kArrivalThreads = 128;

/// Waits, in one block, until every rank's dispatch has arrived: the receive of lsa-ll and of copy-engine.
DBO_KERNEL(kArrivalThreads)
dispatch_arrival_kernel(DBO_PARAM A2aCall c, DBO_PARAM WaitOp op, DBO_PARAM bool skip_own) {
  const std::uint32_t epoch = state(c).epoch;
  if (thread_index() == 0) report(c, epoch, ProgressStage::Waiting);
  wait_for_sources(c, op, c.layout.dispatch_flag, c.layout.dispatch_stamp, epoch, skip_own, true);
  if (thread_index() == 0) report(c, epoch, ProgressStage::Done);
}

/// How the send kernels and the combine receive are launched. The layout bounds the cells (kA2aMaxExperts).
inline LaunchPlan<LlParams> plan_low_latency(const A2aCall& call, const TokenView& tokens, void* out) {
  static_assert(kLlCellOffset + (kA2aMaxExperts + 1) * sizeof(int) <= kWholeSmBytes);
  return {{call, tokens, ExpertRanks(call.layout.dims.experts_per_rank), static_cast<std::byte*>(out)},
          call.blocks,
          kLlThreads,
          kWholeSmBytes};
}

}  // namespace dbo::kernels::device
