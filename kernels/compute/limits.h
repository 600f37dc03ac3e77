// Dimensions the compute kernels are built for. Plain C++, no CUDA.
#pragma once

#include <cstdint>

namespace dbo::kernels {

/// Tokens of one page of the cache.
inline constexpr int kPageTokens = 64;

/// The MLA dimensions that all presets share.
inline constexpr int kMlaLatent = 512;  ///< cached latent of k and v
inline constexpr int kMlaRope = 64;     ///< rotated part of q and k, cached behind the latent
inline constexpr int kMlaCached = kMlaLatent + kMlaRope;
inline constexpr int kMlaNope = 128;  ///< part of a head's q and k that is not rotated
inline constexpr int kMlaQk = kMlaNope + kMlaRope;
inline constexpr int kMlaV = 128;
inline constexpr int kGqaHeadDim = 128;

inline constexpr int kMaxLocalExperts = 480;  ///< experts one grouped GEMM can serve: tile counts are kept in shared memory
inline constexpr int kIndexBlocks = 64;       ///< thread blocks that sort received rows by expert
inline constexpr int kTickets = 4;            ///< counters of op MLP's two grouped GEMMs
inline constexpr int kMaxExperts = 512;       ///< routed experts a router can choose from
inline constexpr int kMaxTopK = 16;

/// Experts a lane of the router's warp holds: ceil(experts / 32), rounded up to what the kernel is built for.
constexpr int router_experts_per_lane(int experts) {
  const int each = (experts + 31) / 32;
  return each <= 6 ? each : each <= 8 ? 8 : each <= 12 ? 12 : 16;
}
/// Lanes of the router's warp that share a group of experts, a power of two; 0 where groups are no runs of whole lanes,
/// which the kernel cannot choose among.
constexpr int router_lanes_per_group(int experts, int groups) {
  const int each = router_experts_per_lane(experts);
  if (groups < 1 || experts % groups != 0 || experts / groups % each != 0) return 0;
  const int lanes = experts / groups / each;
  return (lanes & (lanes - 1)) == 0 ? lanes : 0;
}

/// Query rows a block of the decode kernels takes at a time.
inline constexpr int kMlaDecodeRows = 64;
inline constexpr int kGqaDecodeRows = 16;

/// Floats of the partial results of a decode launch on `sms` SMs: two requests of a block's lane may be cut. The GQA
/// kernel runs two blocks on an SM.
struct PartialSizes {
  std::int64_t o = 0;
  std::int64_t log2_sum = 0;
};
constexpr PartialSizes mla_decode_partials(int sms) {
  return {std::int64_t{2} * sms * kMlaDecodeRows * kMlaLatent, std::int64_t{2} * sms * kMlaDecodeRows};
}
constexpr PartialSizes gqa_decode_partials(int sms) {
  return {std::int64_t{4} * sms * kGqaDecodeRows * kGqaHeadDim, std::int64_t{4} * sms * kGqaDecodeRows};
}

}  // namespace dbo::kernels
