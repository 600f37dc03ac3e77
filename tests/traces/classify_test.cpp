#include "traces/classify.h"

#include <doctest/doctest.h>

#include "tests/traces/kineto_builder.h"

using namespace dbo;
using dbo::testing::KinetoBuilder;

namespace {

/// "A0[0]0 A1[0]0 ...": kind, ubatch and layer of every kernel of a stream, equal neighbours once.
std::string ops_text(const ClassifiedTrace& trace, std::size_t stream) {
  std::string text, last;
  for (const std::uint32_t i : trace.streams[stream].slices) {
    const SliceInfo& info = trace.info[i];
    const std::string one = std::string(op_name(info.kind)) + "[" + std::to_string(info.ubatch) + "]" +
                            (info.layer >= 0 ? std::to_string(info.layer) : "-");
    if (one != last) text += (text.empty() ? "" : " ") + one;
    last = one;
  }
  return text;
}

/// Writes a decode step of vLLM's low-latency schedule as kernels one after another on stream 7.
class Decode {
 public:
  void attention_before() { run({"rms_norm", "deep_gemm (GemmType)0", "rotary_embedding", "concat_and_cache_mla"}); }
  void attention() {
    attention_before();
    run({"flash_fwd_splitkv_mla_kernel", "flash_fwd_mla_combine_kernel", "deep_gemm (GemmType)0", "rms_norm"});
  }
  void router() { run({"gemm", "grouped_topk_fused_kernel"}); }
  void dense() { run({"deep_gemm (GemmType)0", "silu_and_mul", "deep_gemm (GemmType)0"}); }
  void experts() {
    run({"deep_gemm m_grouped (GemmType)2", "_silu_mul_fp8_quant_deep_gemm", "deep_gemm m_grouped (GemmType)2"});
  }
  void shared() { run({"deep_gemm (GemmType)0", "silu_and_mul", "deep_gemm (GemmType)0"}); }
  void dispatch() { run({"deep_ep::internode_ll::dispatch"}); }
  void combine() { run({"deep_ep::internode_ll::combine"}); }
  void run(const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      builder.kernel(name, 7, time, 10);
      time += 12;
    }
  }

  KinetoBuilder builder;
  int time = 0;
};

}  // namespace

TEST_CASE("classify: low-latency kernels of two ubatches on one stream find their layers") {
  Decode step;
  // Ubatch 0 runs embedding, one dense layer and its first MoE attention up to the dispatch; then ubatch 1 does.
  step.run({"vectorized_gather_kernel"});
  step.attention();
  step.dense();
  step.attention();
  step.router();
  step.dispatch();  // D0 send
  step.run({"vectorized_gather_kernel"});
  step.attention();
  step.dense();
  step.attention();
  step.router();
  for (int layer = 1; layer <= 2; ++layer) {
    step.dispatch();  // D0 recv
    step.dispatch();  // D1 send
    step.experts();
    step.dispatch();  // D1 recv
    step.combine();   // C0 send
    step.shared();
    step.experts();
    step.combine();  // C0 recv
    step.combine();  // C1 send
    step.shared();
    if (layer == 2) break;
    step.attention();
    step.router();
    step.combine();   // C1 recv
    step.dispatch();  // D0 send
    step.attention();
    step.router();
  }
  step.run({"rms_norm", "gemm"});
  step.combine();
  step.run({"rms_norm", "gemm"});
  const ClassifiedTrace trace = classify(step.builder.read(), KernelRules());
  CHECK(trace.how == "order");
  CHECK(trace.ubatches == 2);
  CHECK(trace.dense_layers == 1);
  CHECK(trace.layers == 3);
  CHECK(trace.streams[0].lane == "compute");
  CHECK(ops_text(trace, 0) ==
        "EMB[0]- A0[0]0 A1[0]0 FFN[0]0 A0[0]1 A1[0]1 D.send[0]1 "
        // The second embedding stands behind a send, where only a named kernel tells it from attention.
        "A0[1]0 A1[1]0 FFN[1]0 A0[1]1 A1[1]1 "
        "D.recv[0]1 D.send[1]1 MLP[0]1 D.recv[1]1 C.send[0]1 S[0]1 MLP[1]1 C.recv[0]1 C.send[1]1 S[1]1 "
        "A0[0]2 A1[0]2 C.recv[1]1 D.send[0]2 A0[1]2 A1[1]2 "
        "D.recv[0]2 D.send[1]2 MLP[0]2 D.recv[1]2 C.send[0]2 S[0]2 MLP[1]2 C.recv[0]2 C.send[1]2 S[1]2 "
        "HEAD[0]- C.recv[1]2 HEAD[1]-");
}

TEST_CASE("classify: high-throughput kernels on a compute and a comm stream") {
  KinetoBuilder builder;
  int t = 0;
  const auto compute = [&](std::vector<std::string> names) {
    for (const std::string& name : names) builder.kernel(name, 7, t += 12, 10);
  };
  const std::vector<std::string> attention = {"rms_norm", "gemm", "flash_fwd", "gemm", "rms_norm", "topkGatingSoftmax"};
  const std::vector<std::string> experts = {"permute_kernel", "grouped_gemm", "silu_and_mul_masked", "grouped_gemm"};
  const std::vector<std::string> shared = {"gemm", "silu_and_mul", "gemm"};
  for (int layer = 0; layer < 2; ++layer) {
    compute(attention);
    builder.kernel("deep_ep::intranode::notify_dispatch", 16, t + 12, 5);
    builder.kernel("deep_ep::intranode::dispatch", 16, t + 20, 30);
    compute(attention);
    compute(experts);
    builder.kernel("deep_ep::intranode::dispatch", 16, t - 30, 20);
    builder.kernel("deep_ep::intranode::cached_notify_combine", 16, t + 12, 2);
    builder.kernel("deep_ep::intranode::combine", 16, t + 15, 20);
    compute(experts);
    builder.kernel("deep_ep::intranode::combine", 16, t + 15, 30);
    compute(shared);
    compute(shared);
  }
  const ClassifiedTrace trace = classify(builder.read(), KernelRules());
  REQUIRE(trace.streams.size() == 2);
  CHECK(trace.streams[1].lane == "comm");
  CHECK(trace.ubatches == 2);
  CHECK(trace.layers == 2);
  CHECK(trace.dense_layers == 0);
  CHECK(ops_text(trace, 1) == "D[0]0 D[1]0 C[0]0 C[1]0 D[0]1 D[1]1 C[0]1 C[1]1");
  CHECK(ops_text(trace, 0) ==
        "A0[0]0 A1[0]0 A0[1]0 A1[1]0 MLP[0]0 MLP[1]0 S[0]0 S[1]0 "
        "A0[0]1 A1[0]1 A0[1]1 A1[1]1 MLP[0]1 MLP[1]1 S[0]1 S[1]1");
}

TEST_CASE("classify: one batch without halves is one ubatch") {
  Decode step;
  for (int layer = 0; layer < 3; ++layer) {
    step.attention();
    step.router();
    step.dispatch();
    step.experts();
    step.combine();
  }
  const ClassifiedTrace trace = classify(step.builder.read(), KernelRules());
  CHECK(trace.ubatches == 1);
  CHECK(ops_text(trace, 0).substr(0, 43) == "A0[0]0 A1[0]0 D[0]0 MLP[0]0 C[0]0 A0[0]1 A1");
}

TEST_CASE("classify: plain collectives around grouped GEMMs stand for dispatch and combine") {
  KinetoBuilder builder;
  int t = 0;
  for (int layer = 0; layer < 2; ++layer)
    for (const char* name : {"flash_fwd", "ncclDevKernel_AllGather_RING", "fused_moe_kernel", "fused_moe_kernel",
                             "ncclDevKernel_ReduceScatter_Sum"})
      builder.kernel(name, 7, t += 12, 10);
  CHECK(ops_text(classify(builder.read(), KernelRules()), 0) ==
        "A1[0]0 D[0]0 MLP[0]0 C[0]0 A1[0]1 D[0]1 MLP[0]1 C[0]1");
}

TEST_CASE("classify: named ranges of the host say what a kernel belongs to, by when it was launched") {
  KinetoBuilder builder;
  builder.range("ProfilerStep#1", 0, 1000);
  for (int layer = 0; layer < 2; ++layer) {
    const int host = 10 + layer * 200, gpu = 1000 + layer * 300;
    builder.range("attn(F)", host, host + 50);
    builder.kernel("gemm", 7, gpu, 10, host + 5);
    builder.kernel("flash_fwd", 7, gpu + 20, 10, host + 10);
    builder.kernel("gemm", 7, gpu + 40, 10, host + 15);
    builder.range("dispatch(F)", host + 60, host + 80);
    builder.kernel("cast_to_fp8", 7, gpu + 55, 5, host + 62);
    builder.kernel("dpsk::ep::internode::dispatch", 27, gpu + 60, 40, host + 65);
    builder.range("dispatch(B)", host + 90, host + 100);
    builder.kernel("dpsk::ep::internode::combine", 27, gpu + 110, 40, host + 95);
    builder.range("attn(B)", host + 110, host + 150);
    builder.kernel("flash_bwd", 7, gpu + 100, 50, host + 120, 2);  // by the autograd thread
    builder.range("mlp(F)", host + 160, host + 190);
    builder.kernel("grouped_gemm", 7, gpu + 160, 50, host + 170);
  }
  const ClassifiedTrace trace = classify(builder.read(), KernelRules());
  CHECK(trace.how == "ranges");
  CHECK(trace.layers == 2);
  CHECK(ops_text(trace, 0) == "A0[0]0 A1[0]0 OTHER[0]0 OTHER[1]0 MLP[0]0 A0[0]1 A1[0]1 OTHER[0]1 OTHER[1]1 MLP[0]1");
  // A backward dispatch moves what a combine moves: kind by kernel, name by range.
  CHECK(ops_text(trace, 1) == "D[0]0 C[1]0 D[0]1 C[1]1");
  const Trace ops = ops_of(trace);
  CHECK(std::any_of(ops.ops.begin(), ops.ops.end(), [&](const TraceOp& op) {
    return op.kind == OpKind::C && op.ubatch == 1 && ops.names[op.name] == "dispatch(B)";
  }));
  CHECK(ops.lanes == std::vector<std::string>{"compute (stream 7)", "comm (stream 27)"});
  for (const TraceOp& op : ops.ops) CHECK(op.lane == (is_comm(op.kind) ? 1 : 0));
}

TEST_CASE("classify: layer numbers in range names are taken as they are") {
  KinetoBuilder builder;
  for (int layer = 5; layer < 7; ++layer) {
    const int host = layer * 100;
    const std::string name = "model.layers." + std::to_string(layer);
    builder.range(name + ".self_attn", host, host + 20);
    builder.kernel("gemm", 7, host + 1000, 5, host + 5);
    builder.range(name + ".mlp.experts", host + 30, host + 50);
    builder.kernel("fused_moe_kernel", 7, host + 1010, 5, host + 35);
    builder.range(name + ".mlp.shared_experts", host + 60, host + 80);
    builder.kernel("gemm", 7, host + 1020, 5, host + 65);
  }
  CHECK(ops_text(classify(builder.read(), KernelRules()), 0) == "A0[0]5 MLP[0]5 S[0]5 A0[0]6 MLP[0]6 S[0]6");
}

TEST_CASE("classify: steps are told apart by profiler steps and by graph launches") {
  KinetoBuilder builder;
  for (int step = 0; step < 3; ++step) {
    builder.range("ProfilerStep#" + std::to_string(step), step * 1000, step * 1000 + 900);
    builder.kernel("flash_fwd", 7, step * 1000 + 500, 5, step * 1000 + 100);
    builder.kernel("fused_moe_kernel", 7, step * 1000 + 510, 5, step * 1000 + 110);
  }
  const ClassifiedTrace trace = classify(builder.read(), KernelRules());
  CHECK(trace.steps == 3);
  CHECK(trace.layers == 1);  // every step begins anew
}

TEST_CASE("classify: several GPUs in one file are several ranks, one GPU is the rank the file names") {
  const RawTrace one = read_raw_trace_text(
      R"({"distributedInfo":{"rank": 5},"traceEvents":[{"ph":"X","cat":"kernel","name":"gemm","pid":2,"tid":7,"ts":1,"dur":2,"args":{"stream":7,"device":2}}]})",
      "t");
  CHECK(classify(one, KernelRules()).ranks() == std::vector<std::int32_t>{5});
  const RawTrace two = read_raw_trace_text(
      R"([{"ph":"X","cat":"kernel","name":"gemm","pid":1,"tid":7,"ts":1,"dur":2,"args":{"stream":7,"device":1}},)"
      R"({"ph":"X","cat":"kernel","name":"gemm","pid":0,"tid":7,"ts":1,"dur":2,"args":{"stream":7,"device":0}}])",
      "t");
  const ClassifiedTrace trace = classify(two, KernelRules());
  CHECK(trace.ranks() == std::vector<std::int32_t>{0, 1});
  CHECK(trace.raw.slices[trace.streams[0].slices[0]].row == 1);  // device 0 is rank 0, though it comes second
}

TEST_CASE("classify: short names") {
  CHECK(short_kernel_name("void a::b<int, c<2>>(float*, int)") == "a::b");
  CHECK(short_kernel_name("void (anonymous namespace)::f<1>(int)") == "(anonymous namespace)::f");
  CHECK(short_kernel_name("void cutlass::device_kernel<x::y::Gemm>(x::y::Gemm::Params)") == "x::y::Gemm");
  CHECK(short_kernel_name("ncclDevKernel_AllGather") == "ncclDevKernel_AllGather");
  CHECK(short_kernel_name("<>") == "<>");
}
