#include "kernels/compute/ops.h"

#include <cmath>

#include "kernels/compute/permute.h"
#include "kernels/compute/pointwise.h"
#include "kernels/compute/quantise.h"
#include "kernels/compute/router.h"

namespace dbo::kernels {
namespace {

/// Issues kernels until one fails.
class Issue {
 public:
  template <class Launch>
  Issue& then(const Launch& launch) {
    if (status_ == cudaSuccess) status_ = launch();
    return *this;
  }
  cudaError_t status() const { return status_; }

 private:
  cudaError_t status_ = cudaSuccess;
};

const void* at(const void* base, std::int64_t elements) {
  return static_cast<const unsigned char*>(base) + elements * 2;
}
void* at(void* base, std::int64_t elements) {
  return static_cast<unsigned char*>(base) + elements * 2;
}

/// Rows of a matrix product with K-major weights, all packed.
DenseGemmArgs product(const void* a, const void* w, void* c, std::int64_t m, std::int64_t n, std::int64_t k,
                      int sm_target) {
  DenseGemmArgs g;
  g.a = a;
  g.w = w;
  g.c = c;
  g.m = static_cast<int>(m);
  g.n = static_cast<int>(n);
  g.k = static_cast<int>(k);
  g.a_stride = g.w_stride = k;
  g.c_stride = n;
  g.sm_target = sm_target;
  return g;
}

float score_scale(const LayerDims& d) {
  return 1.0f / std::sqrt(static_cast<float>(d.attention.kind == AttentionKind::Mla ? kMlaQk : kGqaHeadDim));
}

cudaError_t mla_projections(OpContext& context, const A0Args& args, cudaStream_t stream) {
  const LayerDims& d = *args.dims;
  const std::int64_t tokens = args.batch.tokens, heads = d.attention.heads, lora = d.attention.q_lora_rank;
  const std::int64_t columns = qkv_columns(d), stride = q_stride(d);
  const int decode = args.batch.decode_tokens();
  // Without a low-rank form the queries are the first columns of the product and stay there.
  void* const qkv = lora > 0 ? args.scratch.qkv : args.buffers.q;
  Issue issue;
  issue.then([&] {
    return launch_dense_gemm(
        context.dense,
        product(args.scratch.normed, args.weights[Tensor::QkvIn], qkv, tokens, columns, d.hidden, args.sm_target),
        stream);
  });
  if (lora > 0) {
    issue
        .then([&] {
          RmsNormArgs n;
          n.in = qkv;
          n.in_stride = columns;
          n.weight = args.weights[Tensor::QNorm];
          n.out = args.scratch.q_norm;
          n.rows = args.batch.tokens;
          n.width = static_cast<int>(lora);
          n.epsilon = args.epsilon;
          return launch_rms_norm(n, stream);
        })
        .then([&] {
          return launch_dense_gemm(context.dense,
                                   product(args.scratch.q_norm, args.weights[Tensor::QUp], args.buffers.q, tokens,
                                           stride, lora, args.sm_target),
                                   stream);
        });
  }
  issue.then([&] {
    MlaWriteArgs w;
    w.kv = at(qkv, columns - kMlaCached);
    w.kv_stride = columns;
    w.weight = args.weights[Tensor::KvNorm];
    w.rope = args.rope;
    w.positions = args.batch.positions;
    w.slot_mapping = args.batch.slot_mapping;
    w.cache = args.cache.k;
    w.tokens = args.batch.tokens;
    w.epsilon = args.epsilon;
    return launch_mla_write(w, stream);
  });
  if (decode > 0) {
    issue
        .then([&] {
          // Each head's 128 columns of q times its 128 x 512 of KvUp, read as they lie.
          DenseGemmArgs g;
          g.a = args.buffers.q;
          g.a_stride = stride;
          g.a_batch = kMlaQk;
          g.w = args.weights[Tensor::KvUp];
          g.w_is_kn = true;
          g.w_stride = kMlaLatent;
          g.w_batch = std::int64_t{kMlaNope + kMlaV} * kMlaLatent;
          g.c = args.buffers.q_absorbed;
          g.c_stride = heads * kMlaCached;
          g.c_batch = kMlaCached;
          g.m = decode;
          g.n = kMlaLatent;
          g.k = kMlaNope;
          g.batch = static_cast<int>(heads);
          g.sm_target = args.sm_target;
          return launch_dense_gemm(context.dense, g, stream);
        })
        .then([&] {
          MlaRotateArgs r;
          r.q = args.buffers.q;
          r.q_stride = stride;
          r.out = args.buffers.q_absorbed;
          r.out_stride = heads * kMlaCached;
          r.out_head_stride = kMlaCached;
          r.out_column = kMlaLatent;
          r.rope = args.rope;
          r.positions = args.batch.positions;
          r.tokens = decode;
          r.heads = static_cast<int>(heads);
          return launch_mla_rotate(r, stream);
        });
  }
  if (args.batch.tokens > decode) {
    issue.then([&] {
      MlaRotateArgs r;
      r.q = r.out = at(args.buffers.q, decode * stride);
      r.q_stride = r.out_stride = stride;
      r.out_head_stride = kMlaQk;
      r.out_column = kMlaNope;
      r.rope = args.rope;
      r.positions = args.batch.positions + decode;
      r.tokens = args.batch.tokens - decode;
      r.heads = static_cast<int>(heads);
      return launch_mla_rotate(r, stream);
    });
  }
  if (args.batch.prefill_tokens > 0) {
    // Prefill attends to whole keys and values: what the contexts have in the cache, these tokens included, goes up
    // through KvUp.
    const std::int64_t keys = args.batch.prefill_keys;
    issue
        .then([&] {
          GatherLatentArgs g;
          g.cache = args.cache.k;
          g.batch = args.batch.prefill;
          g.out = args.buffers.keys;
          g.kv_rows = static_cast<int>(keys);
          return launch_gather_latent(g, stream);
        })
        .then([&] {
          DenseGemmArgs g = product(args.buffers.keys, args.weights[Tensor::KvUp], args.buffers.keys_up, keys,
                                    heads * (kMlaNope + kMlaV), kMlaLatent, args.sm_target);
          g.a_stride = kMlaCached;
          return launch_dense_gemm(context.dense, g, stream);
        });
  }
  return issue.status();
}

cudaError_t gqa_projections(OpContext& context, const A0Args& args, cudaStream_t stream) {
  const LayerDims& d = *args.dims;
  const std::int64_t columns = qkv_columns(d);
  return Issue()
      .then([&] {
        return launch_dense_gemm(context.dense,
                                 product(args.scratch.normed, args.weights[Tensor::QkvIn], args.buffers.q,
                                         args.batch.tokens, columns, d.hidden, args.sm_target),
                                 stream);
      })
      .then([&] {
        GqaWriteArgs w;
        w.qkv = args.buffers.q;
        w.bias = args.weights[Tensor::QkvBias];
        w.q_weight = args.weights[Tensor::QNorm];
        w.k_weight = args.weights[Tensor::KvNorm];
        w.rope = args.rope;
        w.positions = args.batch.positions;
        w.slot_mapping = args.batch.slot_mapping;
        w.k_cache = args.cache.k;
        w.v_cache = args.cache.v;
        w.tokens = args.batch.tokens;
        w.heads = d.attention.heads;
        w.kv_heads = d.attention.kv_heads;
        w.epsilon = args.epsilon;
        return launch_gqa_write(w, stream);
      })
      .status();
}

cudaError_t mla_attention(OpContext& context, const A1Args& args, int sms, cudaStream_t stream) {
  const LayerDims& d = *args.dims;
  const std::int64_t heads = d.attention.heads;
  const int decode = args.batch.decode_tokens();
  Issue issue;
  if (decode > 0) {
    MlaDecodeArgs m;
    m.batch = args.batch.decode;
    m.q = args.buffers.q_absorbed;
    m.out = args.scratch.latent;
    m.partials = {args.scratch.partial_o, args.scratch.partial_sum};
    m.heads = static_cast<int>(heads);
    m.scale = score_scale(d);
    m.sms = sms;
    issue.then([&] { return make_mla_cache_map(context.encoder, args.cache.k, args.cache.pages, m.cache); })
        .then([&] { return launch_mla_decode(m, stream); })
        .then([&] {
          // Each head's 512 columns of latent times its 128 value rows of KvUp.
          DenseGemmArgs g;
          g.a = args.scratch.latent;
          g.a_stride = heads * kMlaLatent;
          g.a_batch = kMlaLatent;
          g.w = at(args.weights[Tensor::KvUp], std::int64_t{kMlaNope} * kMlaLatent);
          g.w_stride = kMlaLatent;
          g.w_batch = std::int64_t{kMlaNope + kMlaV} * kMlaLatent;
          g.c = args.scratch.attention;
          g.c_stride = heads * kMlaV;
          g.c_batch = kMlaV;
          g.m = decode;
          g.n = kMlaV;
          g.k = kMlaLatent;
          g.batch = static_cast<int>(heads);
          g.sm_target = args.sm_target;
          return launch_dense_gemm(context.dense, g, stream);
        });
  }
  if (args.batch.prefill_tokens > 0) {
    const std::int64_t keys = args.batch.prefill_keys;
    MlaPrefillArgs m;
    m.batch = args.batch.prefill;
    m.out = at(args.scratch.attention, decode * heads * kMlaV);
    m.heads = static_cast<int>(heads);
    m.scale = score_scale(d);
    issue
        .then([&] {
          return encode_matrix_map(context.encoder, at(args.buffers.q, decode * q_stride(d)), args.batch.prefill_tokens,
                                   heads * kMlaQk, q_stride(d) * 2, 64, m.q);
        })
        .then([&] {
          const std::int64_t columns = heads * (kMlaNope + kMlaV);
          return encode_matrix_map(context.encoder, args.buffers.keys_up, keys, columns, columns * 2, 64, m.kv);
        })
        .then([&] {
          return encode_matrix_map(context.encoder, args.buffers.keys, keys, kMlaCached, kMlaCached * 2, 64, m.rope);
        })
        .then([&] { return launch_mla_prefill(m, stream); });
  }
  return issue.status();
}

cudaError_t gqa_attention(OpContext& context, const A1Args& args, int sms, cudaStream_t stream) {
  const LayerDims& d = *args.dims;
  const std::int64_t heads = d.attention.heads, kv_heads = d.attention.kv_heads;
  const std::int64_t stride = q_stride(d);
  const int decode = args.batch.decode_tokens();
  Issue issue;
  if (decode > 0) {
    issue.then([&] {
      GqaDecodeArgs g;
      g.k_cache = args.cache.k;
      g.v_cache = args.cache.v;
      g.batch = args.batch.decode;
      g.q = args.buffers.q;
      g.q_stride = stride;
      g.out = args.scratch.attention;
      g.partials = {args.scratch.partial_o, args.scratch.partial_sum};
      g.heads = static_cast<int>(heads);
      g.kv_heads = static_cast<int>(kv_heads);
      g.scale = score_scale(d);
      g.sms = sms;
      return launch_gqa_decode(g, stream);
    });
  }
  if (args.batch.prefill_tokens > 0) {
    GqaPrefillArgs g;
    g.batch = args.batch.prefill;
    g.out = at(args.scratch.attention, decode * heads * kGqaHeadDim);
    g.heads = static_cast<int>(heads);
    g.kv_heads = static_cast<int>(kv_heads);
    g.scale = score_scale(d);
    const std::int64_t cache_rows = std::int64_t{args.cache.pages} * kPageTokens,
                       cache_columns = kv_heads * kGqaHeadDim;
    issue
        .then([&] {
          return encode_matrix_map(context.encoder, at(args.buffers.q, decode * stride), args.batch.prefill_tokens,
                                   heads * kGqaHeadDim, stride * 2, 64, g.q);
        })
        .then([&] {
          return encode_matrix_map(context.encoder, args.cache.k, cache_rows, cache_columns, cache_columns * 2, 64,
                                   g.k);
        })
        .then([&] {
          return encode_matrix_map(context.encoder, args.cache.v, cache_rows, cache_columns, cache_columns * 2, 64,
                                   g.v);
        })
        .then([&] { return launch_gqa_prefill(g, stream); });
  }
  return issue.status();
}

}  // namespace

cudaError_t create_op_context(void* scratch, OpContext& context) {
  int device = 0;
  return Issue()
      .then([&] { return cudaGetDevice(&device); })
      .then([&] { return cudaDeviceGetAttribute(&context.device_sms, cudaDevAttrMultiProcessorCount, device); })
      .then([&] { return find_tensor_map_encoder(context.encoder); })
      .then([&] { return prepare_grouped_gemm(); })
      .then([&] { return prepare_attention(); })
      .then([&] { return create_dense_context(scratch, kDenseScratchBytes, context.dense); })
      .status();
}

void destroy_op_context(OpContext& context) {
  destroy_dense_context(context.dense);
}

cudaError_t launch_a0(OpContext& context, const A0Args& args, cudaStream_t stream) {
  if (args.dims == nullptr) return cudaErrorInvalidValue;
  if (args.batch.tokens == 0) return cudaSuccess;
  const LayerDims& d = *args.dims;
  RmsNormArgs n;
  n.in = n.sum = args.buffers.residual;
  n.in_stride = d.hidden;
  n.add[0] = args.add[0];
  n.add[1] = args.add[1];
  n.weight = args.weights[Tensor::AttentionNorm];
  n.out = args.scratch.normed;
  n.rows = args.batch.tokens;
  n.width = d.hidden;
  n.epsilon = args.epsilon;
  return Issue()
      .then([&] { return launch_rms_norm(n, stream); })
      .then([&] {
        return d.attention.kind == AttentionKind::Mla ? mla_projections(context, args, stream)
                                                      : gqa_projections(context, args, stream);
      })
      .status();
}

cudaError_t launch_a1(OpContext& context, const A1Args& args, cudaStream_t stream) {
  if (args.dims == nullptr) return cudaErrorInvalidValue;
  if (args.batch.tokens == 0) return cudaSuccess;
  const LayerDims& d = *args.dims;
  const std::int64_t tokens = args.batch.tokens, columns = std::int64_t{d.attention.heads} * 128;
  const std::int64_t real = args.batch.decode_tokens() + args.batch.prefill_tokens;
  const int sms = args.sms > 0 ? args.sms : context.device_sms;
  Issue issue;
  if (real < tokens) {
    // Padding rows have no context: they take part as zeros.
    issue.then([&] {
      return cudaMemsetAsync(at(args.scratch.attention, real * columns), 0,
                             static_cast<std::size_t>((tokens - real) * columns * 2), stream);
    });
  }
  issue
      .then([&] {
        return d.attention.kind == AttentionKind::Mla ? mla_attention(context, args, sms, stream)
                                                      : gqa_attention(context, args, sms, stream);
      })
      .then([&] {
        return launch_dense_gemm(context.dense,
                                 product(args.scratch.attention, args.weights[Tensor::AttentionOut], args.scratch.out,
                                         tokens, d.hidden, columns, args.sm_target),
                                 stream);
      })
      .then([&] {
        RmsNormArgs n;
        n.in = n.sum = args.buffers.residual;
        n.in_stride = d.hidden;
        n.add[0] = args.scratch.out;
        n.weight = args.weights[Tensor::MlpNorm];
        n.out = args.buffers.normed;
        n.rows = args.batch.tokens;
        n.width = d.hidden;
        n.epsilon = args.epsilon;
        return launch_rms_norm(n, stream);
      });
  if (!args.gate) return issue.status();
  return issue
      .then([&] {
        DenseGemmArgs g = product(args.buffers.normed, args.weights[Tensor::Gate], args.scratch.logits, tokens,
                                  d.moe.routed_experts, d.hidden, args.sm_target);
        g.c_is_float = true;
        return launch_dense_gemm(context.dense, g, stream);
      })
      .then([&] {
        RouterArgs r;
        r.logits = args.scratch.logits;
        r.bias = static_cast<const float*>(args.weights[Tensor::GateBias]);
        r.plan_expert = args.plan_expert;
        r.expert = args.buffers.expert;
        r.weight = args.buffers.weight;
        r.tokens = args.batch.tokens;
        r.experts = d.moe.routed_experts;
        r.top_k = d.moe.top_k;
        r.groups = d.moe.groups;
        r.group_top_k = d.moe.group_top_k;
        r.scoring = d.moe.scoring;
        r.normalise = d.moe.norm_top_k;
        r.scaling = static_cast<float>(d.moe.scaling);
        return launch_router(r, stream);
      })
      .status();
}

cudaError_t launch_mlp(OpContext& context, const MlpArgs& args, cudaStream_t stream) {
  if (args.dims == nullptr || args.max_rows < 1 || args.max_rows > INT32_MAX) return cudaErrorInvalidValue;
  const LayerDims& d = *args.dims;
  const bool rank_major = args.rank_major.rows != nullptr;
  if (rank_major == (args.expert_major.rows != nullptr)) return cudaErrorInvalidValue;
  const int sms = args.sms > 0 ? args.sms : context.device_sms;
  const int experts = args.moe.experts_per_rank, hidden = d.hidden, width = d.moe.intermediate;
  const ExpertIndex index{args.scratch.offset, args.scratch.row, args.scratch.position};

  GroupedGemmArgs up;
  up.offset = args.scratch.offset;
  up.c = args.scratch.hidden;
  up.c_stride = width;
  up.experts = experts;
  up.n = 2 * width;
  up.k = hidden;
  up.sms = sms;
  up.tile = args.choice.up.tile;
  up.tuning = args.choice.up.tuning;
  up.epilogue = GroupedEpilogue::SwiGlu;
  // Offsets and row maps come from the kernel before the one that prepares the rows. Where other kernels have SMs of
  // their own, blocks that wait would take them.
  up.early_start = sms == context.device_sms;
  up.ticket = args.scratch.ticket;
  up.sm_ids = args.sm_ids;
  up.type = d.fp8_experts ? ElementType::Fp8E4m3 : ElementType::Bf16;
  up.w_scale = static_cast<const float*>(args.weights[Tensor::ExpertUpScale]);

  GroupedGemmArgs down;
  down.offset = args.scratch.offset;
  down.row_map = rank_major ? nullptr : args.scratch.row;
  down.c = rank_major ? args.scratch.sorted : args.out;
  down.c_stride = hidden;
  down.experts = experts;
  down.n = hidden;
  down.k = width;
  down.sms = sms;
  down.tile = args.choice.down.tile;
  down.tuning = args.choice.down.tuning;
  down.early_start = up.early_start;
  down.ticket = args.scratch.ticket + 2;
  down.sm_ids = args.sm_ids == nullptr ? nullptr : args.sm_ids + sms;
  down.type = up.type;
  down.w_scale = static_cast<const float*>(args.weights[Tensor::ExpertDownScale]);
  const void* const up_rows = d.fp8_experts ? args.scratch.sorted_codes : args.scratch.sorted;
  const void* const down_rows = d.fp8_experts ? args.scratch.hidden_codes : args.scratch.hidden;
  QuantiseRowsArgs quantise;
  quantise.offset = args.scratch.offset;
  quantise.experts = experts;
  quantise.scale_stride = grouped_scale_stride(args.max_rows);
  quantise.blocks = sms * 8;

  Issue issue;
  issue
      .then([&] {
        IndexArgs i;
        i.dims = args.moe;
        i.index = index;
        i.max_rows = static_cast<int>(args.max_rows);
        i.block_count = args.scratch.block_count;
        i.ticket = args.scratch.ticket;
        i.expert = args.rank_major.expert;
        i.count = rank_major ? args.rank_major.count : args.expert_major.count;
        return rank_major ? launch_rank_major_index(i, stream) : launch_expert_major_index(i, stream);
      })
      .then([&] {
        const void* const rows = rank_major ? args.rank_major.rows : args.expert_major.rows;
        const float* const scales = rank_major ? args.rank_major.scales : args.expert_major.scales;
        if (d.fp8_experts) {
          QuantiseRowsArgs q = quantise;
          q.type = args.payload;
          q.rows = rows;
          q.scales = scales;
          q.row = index.row;
          q.width = hidden;
          q.out = args.scratch.sorted_codes;
          q.out_scales = args.scratch.sorted_scales;
          return launch_quantise_rows(q, stream);
        }
        GatherRowsArgs g;
        g.type = args.payload;
        g.rows = rows;
        g.scales = scales;
        g.index = index;
        g.experts = experts;
        g.hidden = hidden;
        g.out = args.scratch.sorted;
        g.blocks = sms * 8;
        return launch_gather_rows(g, stream);
      })
      .then([&] { return make_grouped_a_map(context.encoder, up_rows, args.max_rows, hidden, up.a, up.type); })
      .then([&] {
        return make_grouped_w_map(context.encoder, args.weights[Tensor::ExpertUp], experts, up.n, hidden, up.w,
                                  up.type);
      })
      .then([&] {
        if (!d.fp8_experts) return cudaSuccess;
        return make_grouped_scale_map(context.encoder, args.scratch.sorted_scales, args.max_rows, hidden, up.a_scale);
      })
      .then([&] { return launch_grouped_gemm(up, stream); })
      .then([&] {
        if (!d.fp8_experts) return cudaSuccess;
        QuantiseRowsArgs q = quantise;
        q.rows = args.scratch.hidden;
        q.width = width;
        q.out = args.scratch.hidden_codes;
        q.out_scales = args.scratch.hidden_scales;
        return launch_quantise_rows(q, stream);
      })
      .then([&] {
        if (!d.fp8_experts) return cudaSuccess;
        return make_grouped_scale_map(context.encoder, args.scratch.hidden_scales, args.max_rows, width, down.a_scale);
      })
      .then([&] { return make_grouped_a_map(context.encoder, down_rows, args.max_rows, width, down.a, down.type); })
      .then([&] {
        return make_grouped_w_map(context.encoder, args.weights[Tensor::ExpertDown], experts, hidden, width, down.w,
                                  down.type);
      })
      .then([&] { return launch_grouped_gemm(down, stream); });
  if (rank_major) {
    issue.then([&] {
      ReduceRowsArgs r;
      r.dims = args.moe;
      r.count = args.rank_major.count;
      r.weight = args.rank_major.weight;
      r.index = index;
      r.sorted = args.scratch.sorted;
      r.out = args.out;
      r.blocks = sms * 12;
      return launch_reduce_rows(r, stream);
    });
  }
  return issue.status();
}

cudaError_t launch_swiglu_block(OpContext& context, const SwiGluBlockArgs& args, cudaStream_t stream) {
  if (args.dims == nullptr || args.width < 8) return cudaErrorInvalidValue;
  const int hidden = args.dims->hidden;
  return Issue()
      .then([&] {
        return launch_dense_gemm(
            context.dense,
            product(args.in, args.up, args.scratch.gate_up, args.tokens, 2 * args.width, hidden, args.sm_target),
            stream);
      })
      .then([&] {
        return launch_swiglu({args.scratch.gate_up, args.scratch.hidden, args.tokens, args.width}, stream);
      })
      .then([&] {
        return launch_dense_gemm(
            context.dense,
            product(args.scratch.hidden, args.down, args.out, args.tokens, hidden, args.width, args.sm_target), stream);
      })
      .status();
}

cudaError_t launch_head(OpContext& context, const HeadArgs& args, cudaStream_t stream) {
  if (args.dims == nullptr) return cudaErrorInvalidValue;
  if (args.rows == 0) return cudaSuccess;
  const LayerDims& d = *args.dims;
  return Issue()
      .then([&] {
        RmsNormArgs n;
        n.in = args.residual;
        n.in_stride = d.hidden;
        n.add[0] = args.add[0];
        n.add[1] = args.add[1];
        n.row_index = args.row_index;
        n.weight = args.weights[Tensor::FinalNorm];
        n.out = args.normed;
        n.rows = args.rows;
        n.width = d.hidden;
        n.epsilon = args.epsilon;
        return launch_rms_norm(n, stream);
      })
      .then([&] {
        return launch_dense_gemm(
            context.dense,
            product(args.normed, args.weights[Tensor::Head], args.logits, args.rows, d.vocab, d.hidden, args.sm_target),
            stream);
      })
      .status();
}

cudaError_t launch_fill_weights(const WeightLayout& layout, void* base, std::uint64_t seed, int first_expert,
                                cudaStream_t stream) {
  Issue issue;
  for (int t = 0; t < kTensors; ++t) {
    const TensorPlace& place = layout.place[static_cast<std::size_t>(t)];
    const std::int64_t each = place.per_expert > 0 ? place.per_expert : place.count;
    for (std::int64_t done = 0; done < place.count; done += each) {
      issue.then([&] {
        FillArgs f;
        f.out = static_cast<unsigned char*>(base) + place.offset_bytes + done * number_bytes(place.type);
        f.type = place.type;
        f.count = each;
        f.seed = tensor_seed(seed, static_cast<Tensor>(t),
                             place.per_expert > 0 ? first_expert + static_cast<int>(done / each) : 0);
        f.scale = place.scale;
        f.offset = place.offset;
        return launch_fill(f, stream);
      });
    }
  }
  return issue.status();
}

}  // namespace dbo::kernels
