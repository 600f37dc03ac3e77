// `bench a2a`: every transport's dispatch and combine beside what they are judged by, in one run.
#include <cstdio>
#include <cstring>

#include "sim/base/error.h"
#include "validate/cuda/bench/a2a_bench.h"

namespace dbo::bench {
namespace {

constexpr int kHidden = 7168, kTopK = 8, kExperts = 256;

}  // namespace

A2aBench::A2aBench(const BenchOptions& options)
    : iterations_(options.quick ? 9 : 25),
      quick_(options.quick),
      records_(options.csv, {"transport", "op", "payload", "tokens", "sms", "mode", "variant", "us_median", "us_p10",
                             "us_p90", "repeats", "wire_bytes", "logical_bytes"}) {
  if (!ranks_.is_loopback()) comms_.emplace(ranks_);
  DBO_BENCH_CHECK(kernels::find_stream_memory_ops(&memory_ops_));
  std::printf(
      "# bench a2a: %d ranks on %s, hidden %d, top-%d of %d experts, random data, L2 flushed, common start,\n"
      "# median of %d (p90 beside it), slowest rank; wire = to other ranks, logical = own rows too (EP2: about 2 x "
      "wire)\n",
      ranks_.count(), ranks_.is_loopback() ? "ONE GPU (loopback: no wire)" : "one GPU each", kHidden, kTopK, kExperts,
      iterations_);
}

void A2aBench::section(const std::string& name, const std::string& reference) {
  table_.emplace(name,
                 std::vector<std::string>{"what", "tokens", "SMs", "mode", "us", "p90", "wire MB", "wire GB/s",
                                          "logical GB/s", reference},
                 "");
}

void A2aBench::row(const A2aPoint& point, const Spread& us, const Traffic& t, double reference_us) {
  const std::string mode = point.graph ? "graph" : "stream";
  const std::string name =
      point.transport + " " + point.op + " " + point.payload + (point.variant.empty() ? "" : ", " + point.variant);
  table_->row({name, std::to_string(point.tokens), point.blocks == 0 ? "-" : std::to_string(point.blocks), mode,
               number(us.median, 1), number(us.p90, 1), number(t.wire / 1e6, 2), number(t.wire / us.median / 1e3, 1),
               number(t.logical / us.median / 1e3, 1), reference_us > 0 ? number(reference_us / us.median, 3) : "-"});
  records_.row({point.transport, point.op, point.payload, std::to_string(point.tokens), std::to_string(point.blocks),
                mode, point.variant, number(us.median, 3), number(us.p10, 3), number(us.p90, 3),
                std::to_string(iterations_), number(t.wire, 0), number(t.logical, 0)});
}

kernels::A2aShape A2aBench::shape_of(Transport transport, kernels::ElementType payload, int tokens) const {
  return {.dims = {.ranks = ranks_.count(),
                   .rank = 0,
                   .experts_per_rank = kExperts / ranks_.count(),
                   .top_k = kTopK,
                   .hidden = kHidden,
                   .max_tokens = tokens},
          .payload = payload,
          .transport = transport,
          .slots = 1};
}

/// Compares rows that rank 0 received from rank 1 with the rows rank 1 sent: a timing of wrong results says nothing.
void A2aBench::verify(const SymmetricBuffers& buffers, const BenchTokens& tokens, int set, const char* what) {
  const kernels::A2aLayout& layout = buffers.layout(0);
  if (layout.payload != kernels::ElementType::Bf16) return;
  const kernels::RankMajorView view = kernels::rank_major_view(layout, buffers.call(0, 1).base, 0);
  std::int32_t count = 0;
  DBO_BENCH_CHECK(cudaMemcpy(&count, view.count + 1, sizeof count, cudaMemcpyDefault));
  if (count != tokens.rank_rows(1, 0)) throw InternalError(std::string(what) + ": wrong count");
  for (int i = 0; i < 64; ++i) {
    const auto row = static_cast<std::size_t>(layout.dims.max_tokens + std::int64_t{count - 1} * i / 63);
    std::int32_t token = -1;
    std::vector<char> got(layout.row_bytes), sent(layout.row_bytes);
    DBO_BENCH_CHECK(cudaMemcpy(&token, view.source_token + row, sizeof token, cudaMemcpyDefault));
    if (token < 0 || token >= tokens.view(1, set).tokens)
      throw InternalError(std::string(what) + ": wrong source token");
    DBO_BENCH_CHECK(cudaMemcpy(got.data(), static_cast<const char*>(view.rows) + row * layout.row_bytes, got.size(),
                               cudaMemcpyDefault));
    DBO_BENCH_CHECK(cudaMemcpy(
        sent.data(), static_cast<const char*>(tokens.view(1, set).rows) + static_cast<std::size_t>(token) * sent.size(),
        sent.size(), cudaMemcpyDefault));
    if (std::memcmp(got.data(), sent.data(), got.size()) != 0) throw InternalError(std::string(what) + ": wrong row");
  }
}

int run_bench_a2a(const BenchOptions& options) {
  for (const char* known : {"", "decode", "prefill", "copy"}) {
    if (options.only != known) continue;
    A2aBench bench(options);
    if (options.only.empty() || options.only == "decode") bench.decode();
    if (options.only.empty() || options.only == "prefill") bench.prefill();
    if (options.only.empty() || options.only == "copy") bench.copies();
    return 0;
  }
  throw InputError("bench a2a has no section \"" + options.only + "\" (allowed: decode, prefill, copy)");
}

}  // namespace dbo::bench
