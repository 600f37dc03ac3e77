// How much work the kernels of an op are: flops and bytes from the model's shape and the batch, nothing about machines.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "sim/plan/plan.h"

namespace dbo {

/// One kernel. `Gemm` and `GroupedGemm` multiply [m, k] by [k, n]; a grouped one has an m of its own for each expert.
struct KernelWork {
  enum class Kind : std::uint8_t {
    Gemm,
    BatchedGemm,   ///< one small GEMM a head (MLA absorb): bound by its bytes
    GroupedGemm,   ///< contiguous: each expert's rows after those before it
    MaskedGemm,    ///< grouped, each expert's rows in slots of its own (low-latency layout)
    DecodeCore,    ///< attention of few query tokens a request over its cache
    PrefillCore,   ///< attention of many query tokens a request
    Memory,        ///< reads and writes, little arithmetic
    Activation,    ///< SwiGLU, with the quantisation of what it writes
    TopK,          ///< SM time for every token
    ExpertIndex,   ///< counting and mapping rows to experts: SM time for every token
    TensorReduce,  ///< sum over the tensor-parallel group
    TensorGather   ///< all tokens back to every GPU of the group
  };

  Kind kind = Kind::Memory;
  std::string_view name;
  double flops = 0;
  double weight_bytes = 0;  ///< weights and KV cache: read once, however small the batch
  double act_bytes = 0;     ///< activations read and written
  Precision precision = Precision::Bf16;
  double m = 0, n = 0, k = 0;  ///< Gemm; GroupedGemm: n and k
  std::vector<double> rows;    ///< GroupedGemm, MaskedGemm: rows of each expert of the rank
  double tokens = 0;           ///< TopK, ExpertIndex
  int kernels = 1;             ///< launches it is made of
};

/// What attention sees of a batch, summed over its requests.
struct AttentionLoad {
  double decode_requests = 0, decode_tokens = 0;
  double decode_pairs = 0;  ///< (query token, cached token) pairs, causal
  double decode_cache = 0;  ///< cached tokens read, once a request
  double prefill_requests = 0, prefill_tokens = 0;
  double prefill_pairs = 0;
  double prefill_context = 0;  ///< tokens whose keys and values prefill needs, the new ones included

  double tokens() const { return decode_tokens + prefill_tokens; }
};

/// Requests with at most this many query tokens, and a context beyond them, run as decode (MLA: absorbed).
inline constexpr int kDecodeQueries = 8;

/// `window`: tokens a query sees at most (0: all). A request's queries see seq - q + 1, ..., seq tokens.
AttentionLoad attention_load(const UbatchLoad& load, int window);
/// Sparse attention: each query sees `top_k` tokens at most, scattered over all that are cached, and prompts run as
/// decode does (absorbed).
AttentionLoad sparse_attention_load(const UbatchLoad& load, int top_k);

/// What one rank's op works on.
struct OpContext {
  const ModelShape* shape = nullptr;
  int tensor_parallel = 1;
  bool moe_layer = true;
  double tokens = 0;        ///< computed on, padding included
  double share_tokens = 0;  ///< of those, the GPU's own part for shared experts (tokens / tensor_parallel)
  AttentionLoad attention;  ///< of this layer, window applied; sparse attention: every token, for its indexer
  AttentionLoad sparse;     ///< sparse attention: what the chosen tokens leave of it
  std::span<const double> expert_rows;  ///< rows of each of the rank's experts
  double received = 0;        ///< distinct (source, token) that arrived: rows before they are copied for each expert
  bool expert_major = false;  ///< the transport delivers rows by expert (low latency)
};

/// The kernels of a compute op, in order. Empty for communication and for ops the model does not have.
std::vector<KernelWork> op_work(OpKind kind, const OpContext& context);

/// Parameters of the model's parts, for memory and checks. Norms and biases are left out.
struct ParameterCounts {
  double attention = 0;      ///< a layer
  double dense_ffn = 0;      ///< a dense layer
  double routed_expert = 0;  ///< one expert
  double shared = 0;         ///< a MoE layer, all shared experts
  double router = 0;         ///< a MoE layer
  double embedding = 0;      ///< one of the two matrices
  double total = 0, active = 0;
};
ParameterCounts parameter_counts(const ModelShape& shape);

/// Bytes the KV cache of one token takes in one layer (of all heads).
double kv_bytes_per_token(const ModelShape& shape);

/// Bytes of one token as dispatch sends it: fp8 and fp4 carry an fp32 scale for each 128 values.
double dispatch_bytes(const ModelShape& shape);
double combine_bytes(const ModelShape& shape);

}  // namespace dbo
