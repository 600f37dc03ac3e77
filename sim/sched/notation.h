// Schedules written down: the notation of the field, in and out.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sim/sched/schedule.h"

namespace dbo {

/// A schedule in notation. `order` is one steady period of the host's launches; `compute` and `comm` say which lane
/// each op is on and may be empty (then: comm ops of a high-throughput schedule on comm, all else on compute).
struct Notation {
  std::string compute, comm, order;
};

/// One launch of a period: `later` counts layers from the earliest layer in the period (the primes).
struct NotedOp {
  OpKind kind = OpKind::Other;
  int ubatch = 0;
  int later = 0;

  friend bool operator==(const NotedOp&, const NotedOp&) = default;
};

/// Parses one row: `A0_0`, `A1₁`, `D.send_0'`; `|`, `-`, `–` and commas only separate. Throws InputError with the text.
std::vector<NotedOp> parse_row(std::string_view row);

/// Whether the notation is of a low-latency schedule: its order has a `.send`.
bool is_low_latency(const Notation& notation);
/// One more than the largest ubatch number in `order`.
int ubatches_of(const Notation& notation);

/// The plan of a schedule in notation: one host thread; waits for data edges only, just before the consumer. Without
/// any prime in `order`, layers are inferred: an op noted before what it needs belongs to the layer before. Throws
/// InputError (file and pointer empty) when ops are missing or twice, lanes contradict the order, or an op comes before
/// what it needs. `spec.ubatches` must be ubatches_of(notation).
Plan make_plan(const Notation& notation, const ScheduleSpec& spec);

/// One steady period of a plan's launches with primes, rotated to where fewest are needed. Empty when the plan repeats
/// no MoE block.
std::vector<NotedOp> steady_period(const Plan& plan);

/// The notation of a plan's steady period, with subscripts, and column marks where a low-latency transfer begins or
/// ends.
Notation notation_of(const Plan& plan);

/// "D.send₀′" for people.
std::string noted_name(const NotedOp& op);

}  // namespace dbo
