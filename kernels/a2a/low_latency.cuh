// lsa-ll: one row per (token, expert), sent and received by kernels of their own, so that something else can run
// between a send and its receive. Rows land in their final place: the dispatch receive only waits.
#pragma once

#include <type_traits>

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
  int warp_total[kLlWarps];
  int slot[kLlWarps][kA2aMaxTopK];  ///< dispatch send: slots of the rows of the tokens in hand
};
/// Behind LlShared. Dispatch send: the experts chosen by all tokens, if they fit. Combine send: first row of each
/// (expert, source) cell among all rows, and their total.
inline constexpr std::size_t kLlTableOffset = (sizeof(LlShared) + 127) / 128 * 128;
inline constexpr int kLlTableWords = static_cast<int>((kWholeSmBytes - kLlTableOffset) / sizeof(int));

DBO_DEVICE int* ll_table() {
  return reinterpret_cast<int*>(dynamic_smem() + kLlTableOffset);
}
DBO_DEVICE int ll_warp() {
  return block_index() * kLlWarps + warp_index();
}
DBO_DEVICE int ll_warp_count() {
  return block_count() * kLlWarps;
}

/// The peers' buffers by rank. With up to 32 ranks each lane has looked one up beforehand; all lanes take part.
struct PeerBases {
  std::byte* const* table;
  std::uint64_t mine;
  bool held;

  DBO_DEVICE explicit PeerBases(const A2aCall& c) : table(c.peers), mine(0), held(c.layout.dims.ranks <= 32) {
    if (lane_index() < c.layout.dims.ranks) mine = reinterpret_cast<std::uint64_t>(table[lane_index()]);
  }
  DBO_DEVICE std::byte* of(int rank) const {
    return held ? reinterpret_cast<std::byte*>(warp_shuffle(mine, rank)) : table[rank];
  }
};

/// Up to kCopyBytes of a row of `row_bytes` at byte `first`.
struct CopyPiece {
  Vec16 v[kCopySteps];
};
DBO_DEVICE CopyPiece load_copy(const std::byte* from, int first, int row_bytes) {
  CopyPiece piece;
  DBO_UNROLL
  for (int step = 0; step < kCopySteps; ++step) {
    const int at = first + step * 512 + lane_index() * 16;
    if (at < row_bytes) piece.v[step] = load_stream(from + at);
  }
  return piece;
}
DBO_DEVICE void store_copy(const CopyPiece& piece, std::byte* to, int first, int row_bytes) {
  DBO_UNROLL
  for (int step = 0; step < kCopySteps; ++step) {
    const int at = first + step * 512 + lane_index() * 16;
    if (at < row_bytes) store16(to + at, piece.v[step]);
  }
}

/// The rows of the dispatch send are cut into units of one piece of one token's row. In a round every block takes
/// `per_block` units in a row, one a warp, few enough that all blocks have some.
struct SendUnits {
  int pieces, units, per_block;

  template <ElementType kPayload>
  DBO_DEVICE static SendUnits of(int tokens, int hidden) {
    constexpr int kElements = kPayload == ElementType::Bf16 ? kCopyBytes / 2 : kQuantElements;
    const int pieces = (hidden + kElements - 1) / kElements, units = tokens * pieces;
    const int share = (units + block_count() - 1) / block_count();
    return {pieces, units, share < kLlWarps ? share : kLlWarps};
  }
  DBO_DEVICE int per_round() const { return per_block * block_count(); }
  DBO_DEVICE int first(int round) const { return round * per_round() + block_index() * per_block; }
};

/// Fills s.slot for the tokens [begin, end), kLlWarps at most: a row's slot is how many earlier tokens chose the same
/// expert. By the whole block; the caller has a barrier before and after.
DBO_DEVICE void find_slots(const std::int32_t* experts, int top_k, int begin, int end, LlShared& s) {
  for (int pair = warp_index(); pair < (end - begin) * top_k; pair += kLlWarps) {
    const int token = begin + pair / top_k, k = pair % top_k;
    const int expert = experts[token * top_k + k];
    int count = 0;
    for (int i = lane_index(); i < token * top_k; i += 32) count += experts[i] == expert ? 1 : 0;
    count = warp_sum(count);
    if (lane_index() == 0) s.slot[token - begin][k] = count;
  }
}

/// One piece of one token's row, already loaded, to all its experts.
template <ElementType kPayload, typename Input>
DBO_DEVICE void send_token_piece(const LlParams& p, const PeerBases& peers, const Input& input, int token, int piece,
                                 int expert, int slot) {
  const A2aLayout& l = p.call.layout;
  const MoeDims& dims = l.dims;
  const int lane = lane_index();
  const int rank = expert < 0 ? 0 : p.expert_ranks.rank_of(expert);
  std::byte* const data = slot_data(p.call, peers.of(rank));
  std::uint64_t row_address = 0, scale_address = 0;
  if (expert >= 0) {
    const int cell = (expert - rank * dims.experts_per_rank) * dims.ranks + source_at(p.call, rank);
    const std::size_t row =
        static_cast<std::size_t>(cell) * static_cast<std::size_t>(dims.max_tokens) + static_cast<std::size_t>(slot);
    row_address = reinterpret_cast<std::uint64_t>(data + l.rows.offset + row * l.row_bytes);
    scale_address = reinterpret_cast<std::uint64_t>(
        data + l.scales.offset + row * static_cast<std::size_t>(dims.hidden / kScaleBlock) * sizeof(float));
    if (piece == 0) {
      reinterpret_cast<std::int32_t*>(data + l.source_token.offset)[row] = token;
      reinterpret_cast<std::int32_t*>(data + l.source_k.offset)[row] = lane;
    }
  }
  if constexpr (kPayload == ElementType::Bf16) {
    for (int k = 0; k < dims.top_k; ++k) {
      auto* const to = reinterpret_cast<std::byte*>(warp_shuffle(row_address, k));
      if (to != nullptr) store_copy(input, to, piece * kCopyBytes, dims.hidden * 2);
    }
  } else {
    const QuantPiece quantised = quantise_piece(input);
    for (int k = 0; k < dims.top_k; ++k) {
      auto* const to = reinterpret_cast<std::byte*>(warp_shuffle(row_address, k));
      auto* const scales = reinterpret_cast<float*>(warp_shuffle(scale_address, k));
      if (to != nullptr) store_piece(quantised, to, scales, piece * kQuantElements, dims.hidden);
    }
  }
}

/// Rows per expert, to the ranks that hold them. From the last warp of every block down: those had no row.
DBO_DEVICE void send_counts(const LlParams& p, const PeerBases& peers, const std::int32_t* experts) {
  const A2aCall& c = p.call;
  const MoeDims& dims = c.layout.dims;
  const int choices = p.tokens.tokens * dims.top_k;
  for (int expert = (kLlWarps - 1 - warp_index()) * block_count() + block_index();
       expert < dims.ranks * dims.experts_per_rank; expert += ll_warp_count()) {
    int count = 0;
    for (int i = lane_index(); i < choices; i += 32) count += experts[i] == expert ? 1 : 0;
    count = warp_sum(count);
    const int rank = p.expert_ranks.rank_of(expert);
    auto* const counts = reinterpret_cast<std::int32_t*>(slot_data(c, peers.of(rank)) + c.layout.count.offset);
    if (lane_index() == 0) counts[(expert - rank * dims.experts_per_rank) * dims.ranks + source_at(c, rank)] = count;
  }
}

/// Loads come before what they do not depend on: each of them takes about a microsecond, and a small call is little
/// else.
template <ElementType kPayload>
DBO_KERNEL(kLlThreads)
ll_dispatch_send_kernel(DBO_PARAM LlParams p) {
  LlShared& s = *reinterpret_cast<LlShared*>(dynamic_smem());
  const A2aCall& c = p.call;
  const MoeDims& dims = c.layout.dims;
  const PeerBases peers(c);
  std::byte* const first = first_peer(c);
  const std::uint32_t epoch = state(c).epoch + 1;
  if (block_index() == 0 && thread_index() == 0) report(c, epoch, ProgressStage::Entered);
  const int choices = p.tokens.tokens * dims.top_k;
  const bool fits = choices <= kLlTableWords;
  for (int i = thread_index(); fits && i < choices; i += kLlThreads) ll_table()[i] = p.tokens.expert[i];
  const std::int32_t* const experts = fits ? ll_table() : p.tokens.expert;
  const SendUnits work = SendUnits::of<kPayload>(p.tokens.tokens, dims.hidden);
  for (int round = 0; round * work.per_round() < work.units; ++round) {
    const int begin = work.first(round), unit = begin + warp_index();
    const int number = work.units - begin < work.per_block ? work.units - begin : work.per_block;
    const bool mine = warp_index() < number;
    const int token = unit / work.pieces, piece = unit - token * work.pieces;
    const std::byte* const row = static_cast<const std::byte*>(p.tokens.rows) +
                                 static_cast<std::size_t>(mine ? token : 0) * static_cast<std::size_t>(dims.hidden) * 2;
    std::conditional_t<kPayload == ElementType::Bf16, CopyPiece, QuantInput> input;
    if constexpr (kPayload == ElementType::Bf16) {
      if (mine) input = load_copy(row, piece * kCopyBytes, dims.hidden * 2);
    } else {
      if (mine) input = load_quant_input(row, piece * kQuantElements, dims.hidden);
    }
    block_sync();
    const int first_token = begin / work.pieces;
    if (number > 0) find_slots(experts, dims.top_k, first_token, (begin + number - 1) / work.pieces + 1, s);
    block_sync();
    if (mine) {
      const bool chooses = lane_index() < dims.top_k;
      const int expert = chooses ? experts[token * dims.top_k + lane_index()] : -1;
      const int slot = chooses ? s.slot[token - first_token][lane_index()] : 0;
      send_token_piece<kPayload>(p, peers, input, token, piece, expert, slot);
    }
  }
  send_counts(p, peers, experts);
  block_sync();
  signal_peers(c, first, c.layout.dispatch_flag, c.layout.dispatch_stamp, arrival_share(), stamp_now(c));
  if (block_index() == 0 && thread_index() == 0) report(c, epoch, ProgressStage::Sent);
}

/// Writes to `cells` the exclusive prefix sums of `counts`, then the total. By the whole block.
DBO_DEVICE void prefix_cells(const std::int32_t* counts, int number, int* cells, LlShared& s) {
  const int per_thread = (number + kLlThreads - 1) / kLlThreads;
  const int begin = thread_index() * per_thread;
  int own = 0;
  for (int i = begin; i < begin + per_thread && i < number; ++i) own += counts[i];
  // Scan over the lanes, then over the warps.
  int sum = own;
  for (int distance = 1; distance < 32; distance *= 2) {
    const int other = warp_shuffle(sum, lane_index() - distance);
    if (lane_index() >= distance) sum += other;
  }
  if (lane_index() == 31) s.warp_total[warp_index()] = sum;
  block_sync();
  int before = sum - own;
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
  int* const cells = ll_table();
  const A2aCall& c = p.call;
  const A2aLayout& l = c.layout;
  const MoeDims& dims = l.dims;
  const PeerBases peers(c);
  std::byte* const first = first_peer(c);
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
    const int token = reinterpret_cast<const std::int32_t*>(own + l.source_token.offset)[row];
    const int k = reinterpret_cast<const std::int32_t*>(own + l.source_k.offset)[row];
    const CopyPiece copy =
        load_copy(own + l.outputs.offset + row * static_cast<std::size_t>(row_bytes), piece * kCopyBytes, row_bytes);
    std::byte* const to = slot_data(c, peers.of(cell % dims.ranks)) + l.combine_rows.offset +
                          static_cast<std::size_t>(token * dims.top_k + k) * static_cast<std::size_t>(row_bytes);
    store_copy(copy, to, piece * kCopyBytes, row_bytes);
  }
  block_sync();
  signal_peers(c, first, l.combine_flag, l.combine_stamp, arrival_share(), stamp_now(c));
  if (block_index() == 0 && thread_index() == 0) report(c, epoch, ProgressStage::Sent);
}

/// Elements of one token that a warp combines at a time.
inline constexpr int kCombineElements = 256;

/// A warp's part of the combine receive: kCombineElements of a token, its choices spread over the lanes.
struct CombineUnit {
  int token = 0, element = 0;  ///< the lane's first element
  int expert = -1;
  float weight = 0.0f;
  Vec16 v[kA2aMaxTopK];

  /// What does not depend on the peers.
  DBO_DEVICE void begin(const LlParams& p, int unit, int pieces) {
    const MoeDims& dims = p.call.layout.dims;
    const int lane = lane_index();
    token = unit / pieces;
    element = (unit - token * pieces) * kCombineElements + lane * 8;
    const bool chooses = token < p.tokens.tokens && lane < dims.top_k;
    expert = chooses ? p.tokens.expert[token * dims.top_k + lane] : -1;
    weight = chooses ? p.tokens.weight[token * dims.top_k + lane] : 0.0f;
  }
  DBO_DEVICE bool has(std::uint32_t used, int k) const { return ((used >> k) & 1u) != 0; }
  /// Starts the loads of the rows.
  DBO_DEVICE void load(const LlParams& p, std::uint32_t used) {
    const MoeDims& dims = p.call.layout.dims;
    const std::byte* const rows = slot_data(p.call, p.call.base) + p.call.layout.combine_rows.offset;
    const std::size_t hidden = static_cast<std::size_t>(dims.hidden);
    DBO_UNROLL
    for (int k = 0; k < kA2aMaxTopK; ++k) {
      if (has(used, k) && element < dims.hidden) {
        v[k] = load_arrived(
            rows + (static_cast<std::size_t>(token * dims.top_k + k) * hidden + static_cast<std::size_t>(element)) * 2);
      }
    }
  }
  /// Weight times row, added with fused multiply-adds in fp32 in ascending k, from +0.
  DBO_DEVICE void finish(const LlParams& p, std::uint32_t used) const {
    const int hidden = p.call.layout.dims.hidden;
    float sum[8] = {};
    DBO_UNROLL
    for (int k = 0; k < kA2aMaxTopK; ++k) {
      const float w = warp_shuffle(weight, k);
      if (has(used, k)) {
        const std::uint32_t words[4] = {v[k].x, v[k].y, v[k].z, v[k].w};
        DBO_UNROLL
        for (int i = 0; i < 4; ++i) {
          sum[2 * i] = multiply_add(w, low_bf16(words[i]), sum[2 * i]);
          sum[2 * i + 1] = multiply_add(w, high_bf16(words[i]), sum[2 * i + 1]);
        }
      }
    }
    if (token < p.tokens.tokens && element < hidden) {
      store16(p.out + (static_cast<std::size_t>(token) * static_cast<std::size_t>(hidden) +
                       static_cast<std::size_t>(element)) *
                          2,
              Vec16{pack_bf16(sum[0], sum[1]), pack_bf16(sum[2], sum[3]), pack_bf16(sum[4], sum[5]),
                    pack_bf16(sum[6], sum[7])});
    }
  }
};

DBO_KERNEL(kLlThreads)
ll_combine_receive_kernel(DBO_PARAM LlParams p) {
  const A2aCall& c = p.call;
  const MoeDims& dims = c.layout.dims;
  const std::uint32_t epoch = state(c).epoch;
  const bool reporter = block_index() == 0 && thread_index() == 0;
  if (reporter) report(c, epoch, ProgressStage::Waiting);
  const int pieces = (dims.hidden + kCombineElements - 1) / kCombineElements, units = p.tokens.tokens * pieces;
  // Two units at a time, so that one's loads are on their way while the other's come.
  CombineUnit one, two;
  one.begin(p, ll_warp(), pieces);
  two.begin(p, ll_warp() + ll_warp_count(), pieces);
  wait_for_sources(c, WaitOp::LlCombine, c.layout.combine_flag, kArrivalUnits, epoch);
  hold_for_sources(c, WaitOp::LlCombine, c.layout.combine_stamp);
  for (int unit = ll_warp(); unit < units; unit += 2 * ll_warp_count()) {
    if (unit != ll_warp()) {
      one.begin(p, unit, pieces);
      two.begin(p, unit + ll_warp_count(), pieces);
    }
    const std::uint32_t used_one = warp_ballot(one.expert >= 0), used_two = warp_ballot(two.expert >= 0);
    one.load(p, used_one);
    two.load(p, used_two);
    one.finish(p, used_one);
    two.finish(p, used_two);
  }
  if (reporter) report(c, epoch, ProgressStage::Done);
}

inline constexpr int kReceiveThreads = 32;

/// Waits, in one block, until every rank's dispatch has arrived. The epoch is advanced here: the blocks of the send,
/// none of which knows when the others have read it, leave it alone.
DBO_TINY_KERNEL
ll_dispatch_receive_kernel(DBO_PARAM A2aCall c) {
  const std::uint32_t epoch = state(c).epoch + 1;
  if (thread_index() == 0) report(c, epoch, ProgressStage::Waiting);
  wait_for_sources(c, WaitOp::LlDispatch, c.layout.dispatch_flag, kArrivalUnits, epoch);
  hold_for_sources(c, WaitOp::LlDispatch, c.layout.dispatch_stamp);
  if (thread_index() == 0) {
    state(c).epoch = epoch;
    report(c, epoch, ProgressStage::Done);
  }
}

/// How the send kernels and the combine receive are launched. The layout bounds the cells (kA2aMaxExperts).
inline LaunchPlan<LlParams> plan_low_latency(const A2aCall& call, const TokenView& tokens, void* out) {
  static_assert(kA2aMaxExperts + 1 <= kLlTableWords);
  return {{call, tokens, ExpertRanks(call.layout.dims.experts_per_rank), static_cast<std::byte*>(out)},
          call.blocks,
          kLlThreads,
          kWholeSmBytes};
}

}  // namespace dbo::kernels::device
