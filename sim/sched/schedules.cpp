// The built-in schedules. Each is a block for one MoE layer; the rest of the step is the builder's.
#include "sim/base/error.h"
#include "sim/base/schedule_names.h"
#include "sim/sched/plan_builder.h"

namespace dbo {
namespace {

using enum OpKind;

void shared(const PlanBuilder& b, ProgramBuilder& body, int ubatch = -1, int layer_offset = 0) {
  if (b.has_shared()) body.launch(S, ubatch, layer_offset);
}

/// vLLM low latency: one thread a ubatch, two yields a layer; each receive is a hook the next thread runs just before
/// its own send, so that at most one call is un-received. Everything is on the compute lane.
Plan vllm_ll(const ScheduleSpec& spec) {
  PlanBuilder b(spec, true, false);
  const int l = b.moe_offset();
  ProgramBuilder body = b.program();
  b.dense_prelude(body, -1);
  body.launch(A0, -1, l).launch(A1, -1, l);
  body.run_hook().launch(DSend, -1, l).hook(DRecv, l).yield();
  body.launch(MLP, -1, l).run_hook().launch(CSend, -1, l);
  shared(b, body, -1, l);
  body.hook(CRecv, l).yield();
  b.add_block("moe", body);
  b.add_thread_per_ubatch("moe");
  return b.take();
}

/// vLLM high throughput: three yields a layer. A record before each yield and the wait after it carry the ubatch's own
/// work across lanes; the dispatch blocks the host where the transport does.
Plan vllm_ht(const ScheduleSpec& spec) {
  PlanBuilder b(spec, false, spec.transport == Transport::Ht);
  const int l = b.moe_offset();
  ProgramBuilder body = b.program();
  b.dense_prelude(body, -1);
  body.launch(A0, -1, l).launch(A1, -1, l);
  body.record("compute_done", kComputeLane).yield().wait("compute_done", kCommLane);
  body.launch(D, -1, l).host_wait_notify(D, -1, l);
  body.record("comm_done", kCommLane).wait("comm_done", kComputeLane).launch(MLP, -1, l);
  body.record("compute_done", kComputeLane).yield().wait("compute_done", kCommLane).launch(C, -1, l);
  shared(b, body, -1, l);
  if (b.combine_copy()) body.launch(CCopy, -1, l);
  body.record("comm_done", kCommLane).yield().wait("comm_done", kComputeLane);
  b.add_block("moe", body);
  b.add_thread_per_ubatch("moe");
  return b.take();
}

/// SGLang's five decode stages with ubatch 1 two stages behind ubatch 0, which is also the order of DeepSeek's decode
/// profile: one low-latency call in flight, hidden behind the other ubatch's attention and its own shared expert.
Plan five_stage_decode(const ScheduleSpec& spec) {
  PlanBuilder b(spec, true, false);
  const int now = b.moe_offset(), before = now - b.stride();
  ProgramBuilder body = b.program();
  b.dense_prelude(body, 0);
  body.launch(A0, 0, now);
  body.launch(DRecv, 1, before).launch(MLP, 1, before).launch(CSend, 1, before);
  body.launch(A1, 0, now).launch(CRecv, 1, before);
  body.launch(DSend, 0, now);
  shared(b, body, 0, now);
  b.dense_prelude(body, 1);
  body.launch(A0, 1, now);
  body.launch(DRecv, 0, now).launch(MLP, 0, now).launch(CSend, 0, now);
  body.launch(A1, 1, now).launch(CRecv, 0, now);
  body.launch(DSend, 1, now);
  shared(b, body, 1, now);
  b.add_block("moe", body);
  b.add_single_thread("moe", {0, 1});
  return b.take();
}

/// Records the producer's lane as `event` and makes the other lane wait for it.
void dispatch(ProgramBuilder& body, int u, int l, const char* attention, const char* arrived) {
  body.wait(attention, kCommLane).launch(D, u, l).host_wait_notify(D, u, l).record(arrived, kCommLane);
}

void experts(ProgramBuilder& body, int u, int l, const char* arrived, const char* done) {
  body.wait(arrived, kComputeLane).launch(MLP, u, l).record(done, kComputeLane);
}

void combine(ProgramBuilder& body, int u, int l, const char* done, const char* combined) {
  body.wait(done, kCommLane).launch(C, u, l).record(combined, kCommLane);
}

/// SGLang's three prefill stages without offset. The calls that block the host come as late as their data allows: the
/// second ubatch's attention is issued before the first one's dispatch.
Plan sglang_prefill(const ScheduleSpec& spec) {
  PlanBuilder b(spec, false, false);
  const int now = b.moe_offset(), before = now - b.stride();
  static constexpr const char* kAttention[] = {"attention_0", "attention_1"};
  static constexpr const char* kArrived[] = {"dispatch_0", "dispatch_1"};
  static constexpr const char* kDone[] = {"experts_0", "experts_1"};
  static constexpr const char* kCombined[] = {"combine_0", "combine_1"};
  ProgramBuilder body = b.program();
  for (const int u : {0, 1}) {
    shared(b, body, u, before);
    combine(body, u, before, kDone[u], kCombined[u]);
    body.wait(kCombined[u], kComputeLane);
    b.dense_prelude(body, u);
    body.launch(A0, u, now).launch(A1, u, now).record(kAttention[u], kComputeLane);
  }
  for (const int u : {0, 1}) {
    dispatch(body, u, now, kAttention[u], kArrived[u]);
    experts(body, u, now, kArrived[u], kDone[u]);
  }
  b.add_block("moe", body);
  b.add_single_thread("moe", {0, 1});
  return b.take();
}

/// DeepSeek's prefill profile: compute ATTN1 SHARED0 ATTN0 MLP1 MLP0 SHARED1 beside comm COMBINE0 DISPATCH1 DISPATCH0
/// COMBINE1; ubatch 1 leads, ubatch 0's combine and shared expert fall into the next layer's iteration.
Plan deepseek_prefill(const ScheduleSpec& spec) {
  PlanBuilder b(spec, false, false);
  const int now = b.moe_offset(), before = now - b.stride();
  ProgramBuilder body = b.program();
  combine(body, 0, before, "experts_0", "combine_0");
  body.wait("combine_1", kComputeLane);
  b.dense_prelude(body, 1);
  body.launch(A0, 1, now).launch(A1, 1, now).record("attention_1", kComputeLane);
  shared(b, body, 0, before);
  body.wait("combine_0", kComputeLane);
  b.dense_prelude(body, 0);
  body.launch(A0, 0, now).launch(A1, 0, now).record("attention_0", kComputeLane);
  dispatch(body, 1, now, "attention_1", "dispatch_1");
  experts(body, 1, now, "dispatch_1", "experts_1");
  dispatch(body, 0, now, "attention_0", "dispatch_0");
  experts(body, 0, now, "dispatch_0", "experts_0");
  combine(body, 1, now, "experts_1", "combine_1");
  shared(b, body, 1, now);
  b.add_block("moe", body);
  b.add_single_thread("moe", {1, 0});
  return b.take();
}

Plan sequential(const ScheduleSpec& spec) {
  const bool low_latency = !serves(transport_info(spec.transport), TransportClass::HighThroughput);
  return make_baseline(spec, low_latency, !low_latency && spec.transport == Transport::Ht);
}

}  // namespace

Plan make_baseline(const ScheduleSpec& spec, bool low_latency, bool combine_copy) {
  PlanBuilder b(spec, low_latency, combine_copy);
  const int l = b.moe_offset();
  ProgramBuilder body = b.program();
  b.dense_prelude(body, 0);
  body.launch(A0, 0, l).launch(A1, 0, l);
  if (low_latency) {
    body.launch(DSend, 0, l).launch(DRecv, 0, l).launch(MLP, 0, l).launch(CSend, 0, l);
    shared(b, body, 0, l);
    body.launch(CRecv, 0, l);
  } else {
    body.record("compute_done", kComputeLane).wait("compute_done", kCommLane);
    body.launch(D, 0, l).host_wait_notify(D, 0, l);
    body.record("comm_done", kCommLane).wait("comm_done", kComputeLane).launch(MLP, 0, l);
    body.record("compute_done", kComputeLane).wait("compute_done", kCommLane).launch(C, 0, l);
    shared(b, body, 0, l);
    if (combine_copy) body.launch(CCopy, 0, l);
    body.record("comm_done", kCommLane).wait("comm_done", kComputeLane);
  }
  b.add_block("moe", body);
  b.add_single_thread("moe", {0});
  return b.take();
}

bool has_combine_copy(const Plan& plan) {
  return plan.find_op(op_name(CCopy)).has_value();
}

Plan make_plan(std::string_view schedule, const ScheduleSpec& spec) {
  if (schedule == kSequentialSchedule) return sequential(spec);
  if (schedule == "vllm-ll") return vllm_ll(spec);
  if (schedule == "vllm-ht") return vllm_ht(spec);
  if (schedule == "sglang-decode" || schedule == "deepseek-decode") return five_stage_decode(spec);
  if (schedule == "sglang-prefill") return sglang_prefill(spec);
  if (schedule == "deepseek-prefill") return deepseek_prefill(spec);
  throw InternalError("no programs for schedule " + std::string(schedule));
}

}  // namespace dbo
