// How tokens lie in memory between dispatch, experts and combine: the contract between the all-to-all kernels, the
// expert kernels and the runtime that allocates the buffers. Plain C++: no CUDA types.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dbo::kernels {

enum class ElementType : std::uint8_t { Bf16, Fp8E4m3 };

/// Elements that share one fp32 scale in fp8 payloads (the block size of DeepSeek-V3's quantisation).
inline constexpr int kScaleBlock = 128;
/// A block with largest magnitude a (at least kMinAmax, so that zeros divide) is stored as q = e4m3(x * (448 / a)), round
/// to nearest even, with scale = a / 448; x is about q * scale.
inline constexpr float kFp8Max = 448.0f;
inline constexpr float kMinAmax = 1e-4f;

/// Dimensions every rank of one all-to-all shares. Counts are per rank unless the name says otherwise.
struct MoeDims {
  int ranks = 1;             ///< expert-parallel ranks that exchange tokens
  int rank = 0;              ///< this rank, 0 <= rank < ranks
  int experts_per_rank = 1;  ///< experts held here; expert e lives on rank e / experts_per_rank
  int top_k = 1;             ///< experts per token, 1 to 11
  int hidden = 0;            ///< elements per token, a multiple of kScaleBlock
  int max_tokens = 0;        ///< most tokens one rank sends in one call
};

/// Received tokens, one row per (source rank, token) that has at least one expert here: what `lsa-ht`, `copy-engine`
/// and `nccl` deliver. Row r = source * max_tokens + slot; slots [0, count[source]) are filled, in the order of the
/// source's token index, so that the layout is the same in every run.
struct RankMajorView {
  void* rows = nullptr;                  ///< [ranks * max_tokens][hidden] bf16 or fp8
  float* scales = nullptr;               ///< [ranks * max_tokens][hidden / kScaleBlock], fp8 only
  std::int32_t* expert = nullptr;        ///< [ranks * max_tokens][top_k] local expert index, -1 where it is not here
  float* weight = nullptr;               ///< [ranks * max_tokens][top_k] routing weight of each of those
  std::int32_t* source_token = nullptr;  ///< [ranks * max_tokens] token index on the source rank
  std::int32_t* count = nullptr;         ///< [ranks] filled slots per source
};

/// Received tokens, one row per (local expert, source rank, token): what `lsa-ll` delivers. Row r =
/// (expert * ranks + source) * max_tokens + slot; slots [0, count[expert * ranks + source]) are filled in the order
/// of the source's token index.
struct ExpertMajorView {
  void* rows = nullptr;                  ///< [experts_per_rank * ranks * max_tokens][hidden] bf16 or fp8
  float* scales = nullptr;               ///< [...][hidden / kScaleBlock], fp8 only
  std::int32_t* source_token = nullptr;  ///< [...] token index on the source rank
  std::int32_t* source_k = nullptr;      ///< [...] which of the token's top_k choices this row serves
  std::int32_t* count = nullptr;         ///< [experts_per_rank * ranks] filled slots
};

/// What a rank feeds into dispatch and gets back from combine.
struct TokenView {
  const void* rows = nullptr;            ///< [tokens][hidden] bf16
  const std::int32_t* expert = nullptr;  ///< [tokens][top_k] global expert index, -1 for an unused choice
  const float* weight = nullptr;         ///< [tokens][top_k]
  int tokens = 0;                        ///< 0 <= tokens <= max_tokens
};

// Expert outputs that combine takes back:
//  rank-major:   [ranks * max_tokens][hidden] bf16; row r is the sum over this rank's experts of the token, each
//                multiplied by its routing weight, added in fp32 in the order of k and rounded once;
//  expert-major: [experts_per_rank * ranks * max_tokens][hidden] bf16, unweighted; the combine receive at the source
//                multiplies by the routing weight and adds in fp32 in the order of k, rounding once.
// In both, the combine at the source adds in a fixed order (rank-major: ascending rank; expert-major: ascending k).

}  // namespace dbo::kernels
