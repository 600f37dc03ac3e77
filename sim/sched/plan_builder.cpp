#include "sim/sched/plan_builder.h"

#include "sim/base/error.h"

namespace dbo {
namespace {

OpId op_id(const Plan& plan, OpKind kind) {
  const auto id = plan.find_op(op_name(kind));
  DBO_CHECK(id.has_value(), "the plan has no op " + std::string(op_name(kind)));
  return *id;
}

EventId event_id(Plan& plan, std::string_view name) {
  for (std::size_t i = 0; i < plan.events.size(); ++i)
    if (plan.events[i] == name) return static_cast<EventId>(i);
  plan.events.emplace_back(name);
  return static_cast<EventId>(plan.events.size() - 1);
}

BlockId block_id(const Plan& plan, std::string_view name) {
  for (std::size_t i = 0; i < plan.blocks.size(); ++i)
    if (plan.blocks[i].name == name) return static_cast<BlockId>(i);
  throw InternalError("the plan has no block " + std::string(name));
}

}  // namespace

ProgramBuilder& ProgramBuilder::launch(OpKind kind, int ubatch, int layer_offset) {
  Instruction i;
  i.verb = Verb::Launch;
  i.op = {op_id(plan_, kind), static_cast<std::int16_t>(ubatch), layer_offset};
  program_.push_back(std::move(i));
  return *this;
}

ProgramBuilder& ProgramBuilder::record(std::string_view event, LaneId lane) {
  Instruction i;
  i.verb = Verb::Record;
  i.event = event_id(plan_, event);
  i.lane = lane;
  program_.push_back(std::move(i));
  return *this;
}

ProgramBuilder& ProgramBuilder::wait(std::string_view event, LaneId lane) {
  record(event, lane);
  program_.back().verb = Verb::Wait;
  return *this;
}

ProgramBuilder& ProgramBuilder::yield() {
  program_.emplace_back();
  return *this;
}

ProgramBuilder& ProgramBuilder::hook(OpKind kind, int layer_offset) {
  Instruction i;
  i.verb = Verb::Hook;
  i.hook.push_back({op_id(plan_, kind), -1, layer_offset});
  program_.push_back(std::move(i));
  return *this;
}

ProgramBuilder& ProgramBuilder::run_hook() {
  program_.emplace_back().verb = Verb::RunHook;
  return *this;
}

ProgramBuilder& ProgramBuilder::exit() {
  program_.emplace_back().verb = Verb::Exit;
  return *this;
}

ProgramBuilder& ProgramBuilder::host_wait_notify(OpKind kind, int ubatch, int layer_offset) {
  if (!transport_info(plan_.transport).host_blocks) return *this;
  launch(kind, ubatch, layer_offset);
  program_.back().verb = Verb::HostWait;
  program_.back().notify = true;
  return *this;
}

ProgramBuilder& ProgramBuilder::repeat(int count, std::string_view name, int stride) {
  if (count == 0) return *this;
  Instruction i;
  i.verb = Verb::Repeat;
  i.count = count;
  i.block = block_id(plan_, name);
  i.stride = stride;
  program_.push_back(std::move(i));
  return *this;
}

ProgramBuilder& ProgramBuilder::block(std::string_view name) {
  Instruction i;
  i.verb = Verb::Block;
  i.block = block_id(plan_, name);
  program_.push_back(std::move(i));
  return *this;
}

PlanBuilder::PlanBuilder(const ScheduleSpec& spec, bool low_latency, bool combine_copy)
    : spec_(spec), low_latency_(low_latency), combine_copy_(combine_copy) {
  plan_.world = spec.world;
  plan_.execution = spec.execution;
  plan_.transport = spec.transport;
  plan_.tensor_parallel = spec.tensor_parallel;
  plan_.sm = spec.sm;
  plan_.shape = spec.shape;
  plan_.routing = spec.routing;
  plan_.loads = spec.loads;
  plan_.lanes = {"compute", "comm"};
  add_ops();
}

BufferId PlanBuilder::buffer(std::string_view name) const {
  for (std::size_t i = 0; i < plan_.buffers.size(); ++i)
    if (plan_.buffers[i].name == name) return static_cast<BufferId>(i);
  throw InternalError("the plan has no buffer " + std::string(name));
}

OpDef& PlanBuilder::add_op(OpKind kind, LaneId lane, SmPool sms, std::initializer_list<std::string_view> reads,
                           std::initializer_list<std::string_view> writes) {
  OpDef op;
  op.name = op_name(kind);
  op.kind = kind;
  op.lane = lane;
  op.sms = sms;
  for (const std::string_view name : reads) op.reads.push_back(buffer(name));
  for (const std::string_view name : writes) op.writes.push_back(buffer(name));
  plan_.ops.push_back(std::move(op));
  return plan_.ops.back();
}

/// The SMs of a compute op. Under `limit` only kernels that take a block count obey; beside DeepEP these are
/// DeepGEMM's, which are of fp8: attention, GEMMs in other precisions, embedding and logits run on the whole GPU.
SmPool PlanBuilder::compute_pool(OpKind kind) const {
  if (spec_.transport != Transport::Ht || spec_.sm.control != SmControl::Limit) return SmPool::Compute;
  if (kind == OpKind::A1) return SmPool::All;
  if (!spec_.shape.has_dims()) return SmPool::Compute;  // stated durations: of kernels that nothing is known of
  if (kind == OpKind::EMB || kind == OpKind::HEAD) return SmPool::All;
  const Precision precision = kind == OpKind::MLP ? spec_.shape.expert_weights : spec_.shape.weights;
  return precision == Precision::Fp8 ? SmPool::Compute : SmPool::All;
}

void PlanBuilder::add_ops() {
  const int n = spec_.ubatches;
  const int handles = transport_info(spec_.transport).handle_slots;
  // hidden: the residual stream; qkv: what A1 takes from A0; tokens: normed input of experts with its routing;
  // a2a: what two calls may use in turn; received, expert_out: between dispatch and combine; routed, shared: what the
  // next layer adds (a dense layer's FFN in the shared expert's place).
  for (const std::string_view name : {"hidden", "qkv", "tokens", "received", "expert_out", "routed", "shared"})
    plan_.buffers.push_back({std::string(name), n, SlotBy::Ubatch});
  plan_.buffers.push_back({"a2a", handles, SlotBy::Call});
  const LaneId compute = kComputeLane, comm = kCommLane;
  add_op(OpKind::EMB, compute, compute_pool(OpKind::EMB), {}, {"hidden"});
  add_op(OpKind::A0, compute, compute_pool(OpKind::A0), {"hidden", "routed", "shared"}, {"hidden", "qkv"});
  add_op(OpKind::A1, compute, compute_pool(OpKind::A1), {"hidden", "qkv"}, {"hidden", "tokens"});
  add_op(OpKind::FFN, compute, compute_pool(OpKind::FFN), {"tokens"}, {"shared"});
  if (low_latency_) {
    add_op(OpKind::DSend, compute, SmPool::Compute, {"tokens"}, {"a2a"});
    add_op(OpKind::DRecv, compute, SmPool::Compute, {"a2a"}, {"received"});
  } else {
    add_op(OpKind::D, comm, SmPool::Comm, {"tokens"}, {"a2a", "received"});
  }
  add_op(OpKind::MLP, compute, compute_pool(OpKind::MLP), {"received"}, {"expert_out"});
  if (has_shared()) add_op(OpKind::S, compute, compute_pool(OpKind::S), {"tokens"}, {"shared"});
  if (low_latency_) {
    add_op(OpKind::CSend, compute, SmPool::Compute, {"expert_out"}, {"a2a"});
    add_op(OpKind::CRecv, compute, SmPool::Compute, {"a2a", "tokens"}, {"routed"});
  } else if (combine_copy_) {
    add_op(OpKind::C, comm, SmPool::Comm, {"expert_out", "tokens"}, {"a2a"});
    add_op(OpKind::CCopy, comm, SmPool::Comm, {"a2a"}, {"routed"});
  } else {
    add_op(OpKind::C, comm, SmPool::Comm, {"expert_out", "tokens"}, {"a2a", "routed"});
  }
  add_op(OpKind::HEAD, compute, compute_pool(OpKind::HEAD), {"hidden", "routed", "shared"}, {"hidden"});
  if (low_latency_) {
    plan_.ops[op_id(plan_, OpKind::DSend)].pairs = op_id(plan_, OpKind::DRecv);
    plan_.ops[op_id(plan_, OpKind::CSend)].pairs = op_id(plan_, OpKind::CRecv);
  } else {
    plan_.ops[op_id(plan_, OpKind::D)].pairs = op_id(plan_, OpKind::D);
    plan_.ops[op_id(plan_, OpKind::C)].pairs = op_id(plan_, OpKind::C);
  }
}

void PlanBuilder::add_block(std::string_view name, ProgramBuilder& body) {
  plan_.blocks.push_back({std::string(name), body.take()});
}

void PlanBuilder::add_thread(int ubatch, ProgramBuilder& body) {
  plan_.threads.push_back({ubatch, body.take()});
  if (plan_.classes.empty())
    for (const auto& [ranks, load] : spec_.classes) plan_.classes.push_back({ranks, {}, load});
  for (RankClass& c : plan_.classes) c.threads.push_back(static_cast<int>(plan_.threads.size()) - 1);
}

void PlanBuilder::dense_prelude(ProgramBuilder& body, int ubatch) {
  for (int offset = 0; offset < moe_offset(); ++offset)
    body.launch(OpKind::A0, ubatch, offset).launch(OpKind::A1, ubatch, offset).launch(OpKind::FFN, ubatch, offset);
}

void PlanBuilder::add_single_thread(std::string_view block, std::initializer_list<int> order) {
  add_single_thread(block, std::vector<int>(order));
}

void PlanBuilder::add_single_thread(std::string_view block, const std::vector<int>& order) {
  ProgramBuilder embed = program(), dense = program(), tail = program();
  for (const int u : order) {
    embed.launch(OpKind::EMB, u);
    dense.launch(OpKind::A0, u).launch(OpKind::A1, u).launch(OpKind::FFN, u);
    tail.launch(OpKind::HEAD, u);
  }
  ProgramBuilder body = program();
  if (spec_.embed_and_head) {
    add_block("embed", embed);
    body.block("embed");
  }
  if (spec_.shape.dense_layers > 0) {
    add_block("dense", dense);
    body.repeat(spec_.shape.dense_layers, "dense");
  }
  body.repeat(moe_iterations(), block, stride());
  if (spec_.embed_and_head) {
    add_block("tail", tail);
    body.block("tail");
  }
  body.exit();
  add_thread(0, body);
}

void PlanBuilder::add_thread_per_ubatch(std::string_view block) {
  ProgramBuilder embed = program(), dense = program(), tail = program();
  embed.launch(OpKind::EMB);
  dense.launch(OpKind::A0).launch(OpKind::A1).launch(OpKind::FFN);
  tail.launch(OpKind::HEAD);
  if (spec_.embed_and_head) add_block("embed", embed);
  if (spec_.shape.dense_layers > 0) add_block("dense", dense);
  if (spec_.embed_and_head) add_block("tail", tail);
  for (int u = 0; u < spec_.ubatches; ++u) {
    ProgramBuilder body = program();
    if (spec_.embed_and_head) body.block("embed");
    if (spec_.shape.dense_layers > 0) body.repeat(spec_.shape.dense_layers, "dense");
    body.repeat(moe_iterations(), block, stride());
    if (spec_.embed_and_head) body.block("tail");
    body.exit();
    add_thread(u, body);
  }
}

}  // namespace dbo
