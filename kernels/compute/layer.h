// One rank's part of a transformer layer: dimensions, weights and how they lie in memory, activations of a ubatch,
// scratch memory of each op. Plain C++, no CUDA.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/compute/hash.h"
#include "kernels/moe_buffers.h"
#include "sim/base/model_shape.h"

namespace dbo::kernels {

struct LayerDims {
  int hidden = 0;
  AttentionShape attention;
  MoeShape moe;              ///< routed_experts 0: a dense layer without a gate
  int experts_per_rank = 0;  ///< routed experts held here
  int dense_intermediate = 0;
  int vocab = 0;
  bool fp8_experts = false;  ///< weights of the routed experts are e4m3 with scales, and so are the rows they get
  bool router_bias = false;  ///< experts are chosen by score plus a learned bias (DeepSeek-V3 and its kin)
};

LayerDims layer_dims(const ModelShape& model, int experts_per_rank);

/// Why the kernels cannot run a layer of these dimensions, or null.
const char* find_unsupported(const LayerDims& dims);

/// Weights of a layer. Matrices are bf16 [out][in]; gate and up rows alternate in blocks of 8, gate first. With
/// `fp8_experts` ExpertUp and ExpertDown are e4m3, and each 128 x 128 of their elements as they lie have a scale.
enum class Tensor : std::uint8_t {
  AttentionNorm,    ///< [hidden]
  QkvIn,            ///< MLA: [q_lora_rank (or heads * 192) + 576][hidden]; GQA: [(heads + 2 kv_heads) * 128][hidden]
  QkvBias,          ///< GQA with bias
  QNorm,            ///< MLA with low-rank q: [q_lora_rank]; GQA with qk_norm: [128]
  KvNorm,           ///< MLA: [512]; GQA with qk_norm: [128], of k
  QUp,              ///< MLA with low-rank q: [heads * 192][q_lora_rank]
  KvUp,             ///< MLA: [heads][256][512], per head 128 rows of k, then 128 of v
  AttentionOut,     ///< [hidden][heads * 128]
  MlpNorm,          ///< [hidden]
  Gate,             ///< [experts][hidden]
  GateBias,         ///< fp32 [experts]
  ExpertUp,         ///< [experts_per_rank][2 intermediate][hidden]
  ExpertDown,       ///< [experts_per_rank][hidden][intermediate]
  SharedUp,         ///< [2 shared_intermediate][hidden]
  SharedDown,       ///< [hidden][shared_intermediate]
  DenseUp,          ///< [2 dense_intermediate][hidden]
  DenseDown,        ///< [hidden][dense_intermediate]
  Embedding,        ///< [vocab][hidden]
  FinalNorm,        ///< [hidden]
  Head,             ///< [vocab][hidden]
  ExpertUpScale,    ///< fp32 [experts_per_rank][ceil(2 intermediate / 128)][ceil(hidden / 128)]
  ExpertDownScale,  ///< fp32 [experts_per_rank][ceil(hidden / 128)][ceil(intermediate / 128)]
};
inline constexpr int kTensors = 22;

enum class WeightSet : std::uint8_t { MoeLayer, DenseLayer, Model };

struct TensorPlace {
  std::int64_t count = 0;       ///< elements; 0: the set has no such tensor
  std::int64_t per_expert = 0;  ///< elements of one expert, 0: not per expert
  std::int64_t columns = 0;     ///< of a matrix
  std::int64_t offset_bytes = 0;
  NumberType type = NumberType::Bf16;
  float scale = 0, offset = 0;  ///< random values: offset + scale * uniform; keeps activations near 1
};

struct WeightLayout {
  std::array<TensorPlace, kTensors> place;
  std::int64_t bytes = 0;  ///< a multiple of 1 MiB
  const TensorPlace& operator[](Tensor t) const { return place[static_cast<std::size_t>(t)]; }
};
WeightLayout weight_layout(const LayerDims& dims, WeightSet set);

/// Seed of a tensor's random values. `expert` is the global index; an expert of a rank that is not there is played with
/// the weights of `stand_in_expert`.
std::uint64_t tensor_seed(std::uint64_t seed, Tensor tensor, int expert = 0);

/// The expert whose weights serve global expert `expert` when only `ranks_here` of the ranks exist and the rank that
/// plays it is `player`: its own if its rank is there, else the player's local expert of the same local index.
constexpr int stand_in_expert(int expert, int experts_per_rank, int ranks_here, int player) {
  return expert / experts_per_rank < ranks_here ? expert : player * experts_per_rank + expert % experts_per_rank;
}

/// One layer's weights in device memory.
struct LayerWeights {
  std::array<const void*, kTensors> tensor = {};
  const void* operator[](Tensor t) const { return tensor[static_cast<std::size_t>(t)]; }
};
LayerWeights place_weights(const WeightLayout& layout, const void* base);

/// Sets of a ring for `layers` layers, so that every layer reads its weights from HBM: together at least three times
/// the L2, at least two, no more than layers or than fit `budget_bytes`; 0 when not even one fits.
int ring_sets(int layers, std::int64_t set_bytes, std::int64_t l2_bytes, std::int64_t budget_bytes);

/// Columns of the product with QkvIn.
std::int64_t qkv_columns(const LayerDims& dims);
/// Elements from token to token of the queries: where q is part of the product with QkvIn (GQA, MLA without a low-rank
/// form) they stay in it.
std::int64_t q_stride(const LayerDims& dims);

/// Hands out pieces of a block of memory, 256 bytes aligned. With a null base it only adds up.
class Carver {
 public:
  explicit Carver(void* base) : base_(static_cast<unsigned char*>(base)) {}
  void* take(std::int64_t bytes) {
    void* const p = base_ == nullptr || bytes == 0 ? nullptr : base_ + used_;
    used_ += (bytes + 255) / 256 * 256;
    return p;
  }
  std::int64_t used() const { return used_; }

 private:
  unsigned char* base_;
  std::int64_t used_ = 0;
};

/// Activations that live from op to op. bf16 unless said otherwise.
struct UbatchBuffers {
  void* residual = nullptr;        ///< [tokens][hidden]
  void* normed = nullptr;          ///< [tokens][hidden]: A1 writes it; D, S and FFN read it
  void* q = nullptr;               ///< [tokens][q_stride(dims)], the heads first
  void* q_absorbed = nullptr;      ///< MLA: [tokens][heads][576], decode tokens
  void* keys = nullptr;            ///< MLA prefill: [keys][576], the cached rows of its contexts one after the other
  void* keys_up = nullptr;         ///< MLA prefill: [keys][heads * 256], projected up: A0 writes both, A1 reads them
  std::int32_t* expert = nullptr;  ///< [tokens][top_k]
  float* weight = nullptr;         ///< [tokens][top_k]
  void* shared = nullptr;          ///< [tokens][hidden]: output of S or FFN
  void* routed = nullptr;          ///< [tokens][hidden]: output of C
};
/// `prefill_keys`: sum of the context lengths of the requests that prefill.
UbatchBuffers carve_ubatch(const LayerDims& dims, int tokens, std::int64_t prefill_keys, Carver& carver);

struct A0Scratch {
  void* normed = nullptr;  ///< [tokens][hidden]
  void* qkv = nullptr;     ///< MLA with low-rank q: [tokens][qkv_columns]
  void* q_norm = nullptr;  ///< [tokens][q_lora_rank]
};
A0Scratch carve_a0(const LayerDims& dims, int tokens, Carver& carver);

/// Sizes that A1's scratch memory depends on.
struct A1Limits {
  int tokens = 0;
  int decode_tokens = 0;
  int sms = 0;  ///< of the decode kernels
};
struct A1Scratch {
  void* latent = nullptr;     ///< MLA decode: [decode tokens][heads][512]
  void* attention = nullptr;  ///< [tokens][heads * 128]
  void* out = nullptr;        ///< [tokens][hidden]
  float* logits = nullptr;    ///< [tokens][experts]
  float* partial_o = nullptr;
  float* partial_sum = nullptr;
};
A1Scratch carve_a1(const LayerDims& dims, const A1Limits& limits, Carver& carver);

struct MlpScratch {
  std::int32_t* offset = nullptr;       ///< [experts_per_rank + 1]
  std::int32_t* row = nullptr;          ///< [max_rows]
  std::int32_t* position = nullptr;     ///< rank-major: [ranks * max_tokens][top_k]
  std::int32_t* ticket = nullptr;       ///< [kTickets]
  std::int32_t* block_count = nullptr;  ///< rank-major: [kIndexBlocks][experts_per_rank]
  void* sorted = nullptr;               ///< [max_rows][hidden]: rows by expert, then (rank-major) the experts' outputs
  void* hidden = nullptr;               ///< [max_rows][intermediate]
  // With fp8_experts what the two products read: e4m3, and scales [ceil(width / 128)][grouped_scale_stride(max_rows)].
  void* sorted_codes = nullptr;  ///< [max_rows][hidden]
  float* sorted_scales = nullptr;
  void* hidden_codes = nullptr;  ///< [max_rows][intermediate]
  float* hidden_scales = nullptr;
};
/// Most sorted rows there can be when tokens pick distinct experts.
std::int64_t most_rows(const MoeDims& dims);
MlpScratch carve_mlp(const LayerDims& dims, const MoeDims& moe, std::int64_t max_rows, Carver& carver);

struct SwiGluScratch {
  void* gate_up = nullptr;  ///< [tokens][2 width]
  void* hidden = nullptr;   ///< [tokens][width]
};
SwiGluScratch carve_swiglu(int tokens, int width, Carver& carver);

}  // namespace dbo::kernels
