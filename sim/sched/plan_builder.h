// Assembles a plan: the ops, buffers and events a transport class needs, and blocks as readable lists of calls.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "sim/sched/schedule.h"

namespace dbo {

/// Appends instructions to a program.
class ProgramBuilder {
 public:
  explicit ProgramBuilder(Plan& plan) : plan_(plan) {}

  ProgramBuilder& launch(OpKind kind, int ubatch = -1, int layer_offset = 0);
  ProgramBuilder& record(std::string_view event, LaneId lane);
  ProgramBuilder& wait(std::string_view event, LaneId lane);
  ProgramBuilder& yield();
  ProgramBuilder& hook(OpKind kind, int layer_offset = 0);
  ProgramBuilder& run_hook();
  ProgramBuilder& exit();
  /// Blocks the host until the counts of a dispatch are known, for transports whose launch does so; else nothing.
  ProgramBuilder& host_wait_notify(OpKind kind, int ubatch = -1, int layer_offset = 0);
  ProgramBuilder& repeat(int count, std::string_view block, int stride = 1);
  ProgramBuilder& block(std::string_view name);
  bool empty() const { return program_.empty(); }
  Program take() { return std::move(program_); }

 private:
  Plan& plan_;
  Program program_;
};

class PlanBuilder {
 public:
  /// Sets everything but the programs. `low_latency`: send and receive halves; otherwise one comm kernel, followed by
  /// C.copy when `combine_copy`.
  PlanBuilder(const ScheduleSpec& spec, bool low_latency, bool combine_copy);

  const ScheduleSpec& spec() const { return spec_; }
  bool low_latency() const { return low_latency_; }
  bool combine_copy() const { return combine_copy_; }
  bool has_shared() const { return spec_.shape.has_shared(); }
  /// Layers one iteration of the MoE repeat covers, and the offset of the MoE layer in it.
  int stride() const { return spec_.shape.moe_period; }
  int moe_offset() const { return stride() - 1; }
  int moe_iterations() const { return spec_.shape.moe_layers(); }

  ProgramBuilder program() { return ProgramBuilder(plan_); }
  void add_block(std::string_view name, ProgramBuilder& body);
  /// One thread; its ubatch is that of ops that name none.
  void add_thread(int ubatch, ProgramBuilder& body);

  /// The dense layers of an iteration (stride > 1) up to its MoE layer's attention: A0 A1 FFN each.
  void dense_prelude(ProgramBuilder& body, int ubatch);

  /// Adds what every schedule of one host thread has around its MoE block: embedding, leading dense layers, `block`
  /// repeated, tail; ubatches in `order`.
  void add_single_thread(std::string_view block, std::initializer_list<int> order);
  void add_single_thread(std::string_view block, const std::vector<int>& order);
  /// The same for one thread a ubatch: thread u runs the whole model on its own.
  void add_thread_per_ubatch(std::string_view block);

  Plan take() { return std::move(plan_); }

 private:
  void add_ops();
  SmPool compute_pool(OpKind kind) const;
  OpDef& add_op(OpKind kind, LaneId lane, SmPool sms, std::initializer_list<std::string_view> reads,
                std::initializer_list<std::string_view> writes);
  BufferId buffer(std::string_view name) const;

  const ScheduleSpec& spec_;
  bool low_latency_, combine_copy_;
  Plan plan_;
};

}  // namespace dbo
