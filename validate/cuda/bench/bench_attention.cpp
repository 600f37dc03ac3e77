#include <algorithm>
#include <cstdio>
#include <fstream>
#include <numeric>

#include "kernels/compute/attention.h"
#include "kernels/compute/permute.h"
#include "kernels/compute/pointwise.h"
#include "kernels/compute/router.h"
#include "kernels/compute/work.h"
#include "validate/cuda/bench/bench.h"
#include "validate/cuda/bench/bench_support.h"

namespace dbo::bench {

namespace {

using namespace dbo::kernels;

AttentionShape mla_shape(int heads) {
  AttentionShape s;
  s.kind = AttentionKind::Mla;
  s.heads = s.kv_heads = heads;
  s.kv_lora_rank = kMlaLatent;
  s.qk_nope_head_dim = kMlaNope;
  s.qk_rope_head_dim = kMlaRope;
  s.v_head_dim = kMlaV;
  return s;
}
AttentionShape gqa_shape(int heads, int kv_heads) {
  AttentionShape s;
  s.kind = AttentionKind::Gqa;
  s.heads = heads;
  s.kv_heads = kv_heads;
  s.head_dim = kGqaHeadDim;
  return s;
}

/// `requests` contexts of the same length, pages in a scattered order.
struct Pages {
  int max_pages, pages;
  Memory lens, table;
  Pages(int requests, int context)
      : max_pages((context + kPageTokens - 1) / kPageTokens),
        pages(requests * max_pages),
        lens(upload(std::vector<std::int32_t>(static_cast<std::size_t>(requests), context))) {
    std::vector<std::int32_t> t(static_cast<std::size_t>(pages));
    for (std::size_t i = 0; i < t.size(); ++i) {
      t[i] = static_cast<std::int32_t>(i * 7919 % t.size());
    }
    // 7919 is prime: a permutation unless it divides the number of pages.
    if (t.size() % 7919 == 0) std::iota(t.begin(), t.end(), 0);
    table = upload(t);
  }
  DecodeBatch decode(int requests, int query_tokens) const {
    return {lens.as<std::int32_t>(), table.as<std::int32_t>(), max_pages, requests, query_tokens};
  }
};

class AttentionBench {
 public:
  AttentionBench(Session& session, const BenchOptions& options)
      : session_(session),
        replays_(options.quick ? 5 : 11),
        table_("attention cores", {"kernel", "us", "TFLOP/s", "of dense", "TB/s", "of copy"}, options.csv) {
    DBO_BENCH_CHECK(find_tensor_map_encoder(encoder_));
    DBO_BENCH_CHECK(prepare_attention());
  }

  void mla_decode(int heads, int requests, int context, int query_tokens) {
    const Pages pages(requests, context);
    const Memory cache =
        random_memory(std::int64_t{pages.pages} * kPageTokens * kMlaCached, 1, 1.0f, session_.stream());
    const std::int64_t rows = std::int64_t{requests} * query_tokens * heads;
    const Memory q = random_memory(rows * kMlaCached, 2, 1.0f, session_.stream()), out(rows * kMlaLatent * 2);
    const PartialSizes sizes = mla_decode_partials(session_.sms());
    const Memory o(sizes.o * 4), sums(sizes.log2_sum * 4);
    MlaDecodeArgs args;
    DBO_BENCH_CHECK(make_mla_cache_map(encoder_, cache.get(), pages.pages, args.cache));
    args.batch = pages.decode(requests, query_tokens);
    args.q = q.get();
    args.out = out.get();
    args.partials = {o.as<float>(), sums.as<float>()};
    args.heads = heads;
    args.scale = 0.07f;
    args.sms = session_.sms();
    AttentionLoad load;
    for (int r = 0; r < requests; ++r) load.add(query_tokens, context);
    report("MLA decode " + std::to_string(heads) + "h b" + std::to_string(requests) + " q" +
               std::to_string(query_tokens) + " ctx " + std::to_string(context),
           mla_decode_work(mla_shape(heads), load),
           [&] { DBO_BENCH_CHECK(launch_mla_decode(args, session_.stream())); });
  }

  void gqa_decode(int heads, int kv_heads, int requests, int context) {
    const Pages pages(requests, context);
    const std::int64_t elements = std::int64_t{pages.pages} * kPageTokens * kv_heads * kGqaHeadDim;
    const Memory k = random_memory(elements, 1, 1.0f, session_.stream()),
                 v = random_memory(elements, 2, 1.0f, session_.stream());
    const std::int64_t stride = std::int64_t{heads + 2 * kv_heads} * kGqaHeadDim;
    const Memory q = random_memory(requests * stride, 3, 1.0f, session_.stream());
    const Memory out(std::int64_t{requests} * heads * kGqaHeadDim * 2);
    const PartialSizes sizes = gqa_decode_partials(session_.sms());
    const Memory o(sizes.o * 4), sums(sizes.log2_sum * 4);
    GqaDecodeArgs args;
    args.k_cache = k.get();
    args.v_cache = v.get();
    args.batch = pages.decode(requests, 1);
    args.q = q.get();
    args.q_stride = stride;
    args.out = out.get();
    args.partials = {o.as<float>(), sums.as<float>()};
    args.heads = heads;
    args.kv_heads = kv_heads;
    args.scale = 0.088f;
    args.sms = session_.sms();
    AttentionLoad load;
    for (int r = 0; r < requests; ++r) load.add(1, context);
    report("GQA decode " + std::to_string(heads) + "/" + std::to_string(kv_heads) + " b" + std::to_string(requests) +
               " ctx " + std::to_string(context),
           gqa_decode_work(gqa_shape(heads, kv_heads), load),
           [&] { DBO_BENCH_CHECK(launch_gqa_decode(args, session_.stream())); });
  }

  /// `requests` of `query` new tokens at the end of `context`.
  void prefill(int heads, int kv_heads, int requests, int query, int context) {
    const Pages pages(requests, context);
    std::vector<std::int32_t> query_start, kv_start;
    for (int r = 0; r <= requests; ++r) {
      query_start.push_back(r * query);
      kv_start.push_back(r * context);
    }
    const Memory starts = upload(query_start), kv_starts = upload(kv_start);
    const std::int64_t tokens = std::int64_t{requests} * query, keys = std::int64_t{requests} * context;
    const PrefillBatch batch{starts.as<std::int32_t>(),
                             pages.lens.as<std::int32_t>(),
                             kv_starts.as<std::int32_t>(),
                             pages.table.as<std::int32_t>(),
                             pages.max_pages,
                             requests,
                             requests * ((query + 127) / 128)};
    const Memory out(tokens * heads * 128 * 2);
    AttentionLoad load;
    for (int r = 0; r < requests; ++r) load.add(query, context);
    const std::string shape =
        " b" + std::to_string(requests) + " q" + std::to_string(query) + " ctx " + std::to_string(context);
    cudaStream_t stream = session_.stream();
    if (kv_heads == 0) {
      const Memory q = random_memory(tokens * heads * kMlaQk, 1, 1.0f, stream),
                   kv = random_memory(keys * heads * 256, 2, 1.0f, stream),
                   latent = random_memory(keys * kMlaCached, 3, 1.0f, stream);
      MlaPrefillArgs args;
      DBO_BENCH_CHECK(encode_matrix_map(encoder_, q.get(), tokens, std::int64_t{heads} * kMlaQk,
                                        std::int64_t{heads} * kMlaQk * 2, 64, args.q));
      DBO_BENCH_CHECK(encode_matrix_map(encoder_, kv.get(), keys, std::int64_t{heads} * 256, std::int64_t{heads} * 512,
                                        64, args.kv));
      DBO_BENCH_CHECK(encode_matrix_map(encoder_, latent.get(), keys, kMlaCached, kMlaCached * 2, 64, args.rope));
      args.batch = batch;
      args.out = out.get();
      args.heads = heads;
      args.scale = 0.07f;
      report("MLA prefill " + std::to_string(heads) + "h" + shape, mla_prefill_work(mla_shape(heads), load),
             [&] { DBO_BENCH_CHECK(launch_mla_prefill(args, stream)); });
      return;
    }
    const std::int64_t row = std::int64_t{kv_heads} * kGqaHeadDim,
                       stride = std::int64_t{heads + 2 * kv_heads} * kGqaHeadDim;
    const std::int64_t cache_rows = std::int64_t{pages.pages} * kPageTokens;
    const Memory q = random_memory(tokens * stride, 1, 1.0f, stream),
                 k = random_memory(cache_rows * row, 2, 1.0f, stream),
                 v = random_memory(cache_rows * row, 3, 1.0f, stream);
    GqaPrefillArgs args;
    DBO_BENCH_CHECK(encode_matrix_map(encoder_, q.get(), tokens, std::int64_t{heads} * 128, stride * 2, 64, args.q));
    DBO_BENCH_CHECK(encode_matrix_map(encoder_, k.get(), cache_rows, row, row * 2, 64, args.k));
    DBO_BENCH_CHECK(encode_matrix_map(encoder_, v.get(), cache_rows, row, row * 2, 64, args.v));
    args.batch = batch;
    args.out = out.get();
    args.heads = heads;
    args.kv_heads = kv_heads;
    args.scale = 0.088f;
    report("GQA prefill " + std::to_string(heads) + "/" + std::to_string(kv_heads) + shape,
           gqa_prefill_work(gqa_shape(heads, kv_heads), load),
           [&] { DBO_BENCH_CHECK(launch_gqa_prefill(args, stream)); });
  }

 private:
  template <class Issue>
  void report(const std::string& name, const Work& work, const Issue& issue) {
    const double t = session_.time(3, replays_, [&](int) { issue(); });
    const double flops = static_cast<double>(work.flops) / t, bytes = static_cast<double>(work.bytes()) / t;
    table_.row({name, number(t * 1e6, 1), number(flops * 1e-12, 0), number(flops / session_.dense_flops_per_s(), 3),
                number(bytes * 1e-12, 2), number(bytes / session_.copy_bytes_per_s(), 3)});
  }

  Session& session_;
  TensorMapEncoder encoder_;
  int replays_;
  Table table_;
};

/// The kernels limited by memory, on arrays far larger than the L2.
void small_kernels(Session& session, const BenchOptions& options) {
  Table table("small kernels", {"kernel", "us", "TB/s", "of copy"}, options.csv);
  cudaStream_t stream = session.stream();
  const int replays = options.quick ? 5 : 11;
  const auto report = [&](const char* name, std::int64_t bytes, const std::function<void()>& issue) {
    const double t = session.time(3, replays, [&](int) { issue(); });
    const double rate = static_cast<double>(bytes) / t;
    table.row({name, number(t * 1e6, 1), number(rate * 1e-12, 2), number(rate / session.copy_bytes_per_s(), 3)});
  };
  const int tokens = 16384, hidden = 7168;
  const std::int64_t elements = std::int64_t{tokens} * hidden;
  const Memory x = random_memory(elements, 1, 1.0f, stream), y = random_memory(elements, 2, 1.0f, stream),
               z(elements * 2);
  const Memory weight = random_memory(hidden, 3, 1.0f, stream);
  RmsNormArgs norm;
  norm.in = norm.sum = x.get();
  norm.in_stride = norm.width = hidden;
  norm.weight = weight.get();
  norm.out = z.get();
  norm.rows = tokens;
  report("rms_norm 16384 x 7168", rms_norm_work(tokens, hidden, 0).bytes(),
         [&] { DBO_BENCH_CHECK(launch_rms_norm(norm, stream)); });
  norm.add[0] = y.get();
  report("rms_norm with one summand", rms_norm_work(tokens, hidden, 1).bytes(),
         [&] { DBO_BENCH_CHECK(launch_rms_norm(norm, stream)); });
  norm.add[0] = nullptr;
  norm.rows = 128;
  report("rms_norm 128 x 7168 (in L2)", rms_norm_work(128, hidden, 0).bytes(),
         [&] { DBO_BENCH_CHECK(launch_rms_norm(norm, stream)); });
  report("swiglu 16384 x 3584", 3 * std::int64_t{tokens} * 3584 * 2, [&] {
    DBO_BENCH_CHECK(launch_swiglu({x.get(), z.get(), tokens, 3584}, stream));
  });

  // 16384 received rows, each with two of 32 experts here.
  MoeDims dims;
  dims.ranks = 8;
  dims.experts_per_rank = 32;
  dims.top_k = 8;
  dims.hidden = hidden;
  dims.max_tokens = tokens / 8;
  std::vector<std::int32_t> expert(static_cast<std::size_t>(tokens) * 8, -1);
  for (std::size_t t = 0; t < static_cast<std::size_t>(tokens); ++t) {
    expert[t * 8] = static_cast<std::int32_t>(t * 5 % 32);
    expert[t * 8 + 3] = static_cast<std::int32_t>((t * 5 + 7) % 32);
  }
  const Memory experts = upload(expert), counts = upload(std::vector<std::int32_t>(8, dims.max_tokens));
  const Memory offset(33 * 4), row(std::int64_t{2} * tokens * 4), position(std::int64_t{tokens} * 8 * 4);
  const Memory sorted(std::int64_t{2} * elements * 2), weights(std::int64_t{tokens} * 8 * 4);
  IndexArgs index;
  index.dims = dims;
  index.expert = experts.as<std::int32_t>();
  index.count = counts.as<std::int32_t>();
  index.index = {offset.as<std::int32_t>(), row.as<std::int32_t>(), position.as<std::int32_t>()};
  index.max_rows = 2 * tokens;
  const Memory block_count(std::int64_t{kIndexBlocks} * 32 * 4);
  index.block_count = block_count.as<std::int32_t>();
  report("index 16384 rows, 32 experts", std::int64_t{tokens} * 8 * 4,
         [&] { DBO_BENCH_CHECK(launch_rank_major_index(index, stream)); });
  GatherRowsArgs gather;
  gather.rows = x.get();
  gather.index = index.index;
  gather.experts = 32;
  gather.hidden = hidden;
  gather.out = sorted.get();
  gather.blocks = session.sms() * 8;
  report("gather 32768 rows", 4 * elements * 2, [&] { DBO_BENCH_CHECK(launch_gather_rows(gather, stream)); });
  ReduceRowsArgs reduce;
  reduce.dims = dims;
  reduce.count = index.count;
  reduce.weight = weights.as<float>();
  reduce.index = index.index;
  reduce.sorted = sorted.get();
  reduce.out = z.get();
  reduce.blocks = session.sms() * 12;
  report("weighted sum of 32768 rows", 3 * elements * 2, [&] { DBO_BENCH_CHECK(launch_reduce_rows(reduce, stream)); });

  const Memory logits(std::int64_t{tokens} * 256 * 4), chosen(std::int64_t{tokens} * 8 * 4), bias(256 * 4);
  FillArgs fill;
  fill.out = logits.get();
  fill.type = kernels::NumberType::Float;
  fill.count = std::int64_t{tokens} * 256;
  fill.scale = 3.0f;
  DBO_BENCH_CHECK(launch_fill(fill, stream));
  fill.out = bias.get();
  fill.count = 256;
  DBO_BENCH_CHECK(launch_fill(fill, stream));
  RouterArgs router;
  router.logits = logits.as<float>();
  router.bias = bias.as<float>();
  router.expert = chosen.as<std::int32_t>();
  router.weight = weights.as<float>();
  router.tokens = tokens;
  router.experts = 256;
  router.top_k = 8;
  router.groups = 8;
  router.group_top_k = 4;
  router.scoring = Scoring::Sigmoid;
  report("router 16384 x 256", std::int64_t{tokens} * (256 * 4 + 64),
         [&] { DBO_BENCH_CHECK(launch_router(router, stream)); });
  router.tokens = 128;
  report("router 128 x 256 (in L2)", std::int64_t{128} * (256 * 4 + 64),
         [&] { DBO_BENCH_CHECK(launch_router(router, stream)); });
}

}  // namespace

int run_bench_attention(const BenchOptions& options) {
  if (!options.csv.empty()) std::ofstream(options.csv, std::ios::trunc);
  Session session(options.device);
  session.print_head("bench attention");
  std::printf("# operations and bytes by kernels/compute/work.h, medians of graph replays\n");
  {
    AttentionBench bench(session, options);
    bench.mla_decode(16, 128, 4096, 1);
    bench.mla_decode(128, 128, 4096, 1);
    bench.mla_decode(64, 128, 4096, 1);
    if (!options.quick) {
      bench.mla_decode(16, 16, 32768, 1);
      bench.mla_decode(128, 32, 4096, 1);
      bench.mla_decode(128, 128, 4096, 2);
      bench.mla_decode(16, 512, 512, 1);
    }
    bench.gqa_decode(64, 4, 128, 4096);
    bench.gqa_decode(32, 4, 128, 4096);
    if (!options.quick) {
      bench.gqa_decode(96, 8, 64, 4096);
      bench.gqa_decode(64, 4, 8, 32768);
    }
    bench.prefill(128, 0, 1, 4096, 4096);
    bench.prefill(64, 4, 1, 4096, 4096);
    if (!options.quick) {
      bench.prefill(128, 0, 4, 1024, 1024);
      bench.prefill(128, 0, 1, 2048, 8192);
      bench.prefill(16, 0, 1, 8192, 8192);
      bench.prefill(32, 4, 8, 1024, 1024);
    }
  }
  small_kernels(session, options);
  return 0;
}

}  // namespace dbo::bench
