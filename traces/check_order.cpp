#include "traces/check_order.h"

#include <algorithm>
#include <map>

#include "sim/base/error.h"
#include "sim/plan/linearise.h"

namespace dbo {
namespace {

std::int64_t ns(SimTime time) {
  return time.time_since_epoch().count();
}

class Judge {
 public:
  Judge(const Plan& plan, const Trace& trace, const OrderOptions& options)
      : plan_(plan), trace_(trace), options_(options) {
    for (std::size_t c = 0; c < plan.classes.size(); ++c) linear_.push_back(linearise(plan, static_cast<int>(c)));
    for (std::size_t l = 0; l < trace.lanes.size(); ++l) {
      const auto found = std::find(plan.lanes.begin(), plan.lanes.end(), trace.lanes[l]);
      lane_of_.push_back(found == plan.lanes.end() ? -1 : static_cast<int>(found - plan.lanes.begin()));
    }
  }

  std::vector<OrderFinding> run() {
    std::map<int, std::vector<const TraceOp*>> by_rank;
    for (const TraceOp& op : trace_.ops) {
      if (op.rank < 0 || op.rank >= plan_.world.ranks)
        throw InputError("the trace has rank " + std::to_string(op.rank) + ", the plan has " +
                         std::to_string(plan_.world.ranks) + " ranks");
      by_rank[op.rank].push_back(&op);
    }
    for (const auto& [rank, ops] : by_rank) collect(rank, ops);
    for (const auto& [rank, slices] : slices_) judge_rank(rank, slices);
    judge_arrivals();
    return std::move(findings_);
  }

 private:
  using Slices = std::vector<const TraceOp*>;  ///< by plan op

  const Linear& order(int rank) const { return linear_[static_cast<std::size_t>(plan_.class_of(rank))]; }

  void add(OrderFinding::Kind kind, int rank, std::uint32_t op, std::string text) {
    if (findings_.size() < options_.limit)
      findings_.push_back({kind, rank, op, "rank " + std::to_string(rank) + ": " + std::move(text)});
  }

  void collect(int rank, const std::vector<const TraceOp*>& ops) {
    const Linear& linear = order(rank);
    Slices& slices = slices_[rank];
    slices.assign(linear.ops.size(), nullptr);
    for (const TraceOp* op : ops) {
      if (is_wire(op->kind)) continue;
      if (op->plan_op == kNoPlanOp || op->plan_op >= linear.ops.size()) {
        if (op->kind != OpKind::Other)
          add(OrderFinding::Kind::Unknown, rank, op->plan_op,
              trace_.names[op->name] + " at " + us_text(ns(op->start)) + " us is no op of the plan");
        continue;
      }
      const LinearOp& planned = linear.ops[op->plan_op];
      if (plan_.ops[planned.op].kind != op->kind || planned.ubatch != op->ubatch || planned.layer != op->layer) {
        add(OrderFinding::Kind::Unknown, rank, op->plan_op,
            "op " + std::to_string(op->plan_op) + " of the plan is " + describe(plan_, planned) + ", the trace says " +
                std::string(op_name(op->kind)) + " of ubatch " + std::to_string(op->ubatch) + ", layer " +
                std::to_string(op->layer));
        continue;
      }
      if (slices[op->plan_op] != nullptr) {
        add(OrderFinding::Kind::Twice, rank, op->plan_op,
            describe(plan_, planned) + " ran twice, at " + us_text(ns(slices[op->plan_op]->start)) + " and " +
                us_text(ns(op->start)) + " us");
        continue;
      }
      slices[op->plan_op] = op;
      if (lane_of_[op->lane] != planned.lane)
        add(OrderFinding::Kind::WrongLane, rank, op->plan_op,
            describe(plan_, planned) + " ran on lane " + trace_.lanes[op->lane] + ", planned on " +
                plan_.lanes[planned.lane]);
    }
  }

  /// What a lane, or a record of it, is behind: the latest end among the ops before, and that op.
  struct Front {
    std::int64_t end = INT64_MIN;
    std::uint32_t op = kNone;
    bool waited = false;  ///< came over a wait from another lane
  };

  void judge_rank(int rank, const Slices& slices) {
    const Linear& linear = order(rank);
    std::vector<Front> lanes(plan_.lanes.size()), records(linear.records.size());
    for (const HostStep& step : linear.host) {
      if (step.verb == Verb::Record) {
        records[step.index] = lanes[linear.records[step.index].lane];
      } else if (step.verb == Verb::Wait) {
        const LinearWait& wait = linear.waits[step.index];
        if (wait.record == kNone) continue;
        Front front = records[wait.record];
        front.waited = linear.records[wait.record].lane != wait.lane;
        if (front.end > lanes[wait.lane].end) lanes[wait.lane] = front;
      } else if (step.verb == Verb::Launch) {
        judge_op(rank, linear, slices, step.index, lanes[linear.ops[step.index].lane]);
      }
    }
  }

  void judge_op(int rank, const Linear& linear, const Slices& slices, std::uint32_t index, Front& lane) {
    const TraceOp* op = slices[index];
    const LinearOp& planned = linear.ops[index];
    if (op == nullptr) {
      if (!options_.absent_is_zero_length)
        add(OrderFinding::Kind::Missing, rank, index, describe(plan_, planned) + " did not run");
      return;
    }
    const std::int64_t early = lane.op == kNone ? 0 : lane.end - ns(op->start);
    if (early > options_.lane_slack.count()) {
      const std::string by = ", " + us_text(early) + " us before " + describe(plan_, linear.ops[lane.op]) + " ended";
      add(lane.waited ? OrderFinding::Kind::Wait : OrderFinding::Kind::LaneOrder, rank, index,
          describe(plan_, planned) + " began at " + us_text(ns(op->start)) + " us" + by +
              (lane.waited ? ", for which its lane waits" : ", which is ahead of it on its lane"));
    }
    if (ns(op->end) >= lane.end) lane = {ns(op->end), index, false};
  }

  /// Receives end after every traced rank's send has ended, comm kernels after every traced rank has started.
  void judge_arrivals() {
    struct Key {
      bool dispatch;
      int ubatch;
      std::int32_t layer;
      auto operator<=>(const Key&) const = default;
    };
    struct Latest {
      std::int64_t time = INT64_MIN;
      int rank = 0;
    };
    std::map<Key, Latest> latest;
    const auto each = [&](auto&& visit) {
      for (const auto& [rank, slices] : slices_)
        for (std::uint32_t i = 0; i < slices.size(); ++i)
          if (slices[i] != nullptr)
            visit(rank, i, *slices[i], Key{is_dispatch(slices[i]->kind), slices[i]->ubatch, slices[i]->layer});
    };
    each([&](int rank, std::uint32_t, const TraceOp& op, const Key& key) {
      if (!is_send(op.kind) && !is_collective(op.kind)) return;
      const std::int64_t time = is_send(op.kind) ? ns(op.end) : ns(op.start);
      Latest& entry = latest[key];
      if (time > entry.time) entry = {time, rank};
    });
    each([&](int rank, std::uint32_t i, const TraceOp& op, const Key& key) {
      if (!is_recv(op.kind) && !is_collective(op.kind)) return;
      const auto found = latest.find(key);
      if (found == latest.end()) return;
      const std::int64_t early = found->second.time - ns(op.end);
      const std::int64_t slack = found->second.rank == rank ? options_.lane_slack.count() : options_.rank_slack.count();
      if (early <= slack) return;
      add(OrderFinding::Kind::Arrival, rank, i,
          describe(plan_, order(rank).ops[i]) + " ended at " + us_text(ns(op.end)) + " us, " + us_text(early) +
              " us before rank " + std::to_string(found->second.rank) +
              (is_recv(op.kind) ? " had sent" : " had started"));
    });
  }

  const Plan& plan_;
  const Trace& trace_;
  const OrderOptions& options_;
  std::vector<Linear> linear_;
  std::vector<int> lane_of_;  ///< by trace lane: the plan's lane, or -1
  std::map<int, Slices> slices_;
  std::vector<OrderFinding> findings_;
};

}  // namespace

std::vector<OrderFinding> check_order(const Plan& plan, const Trace& trace, const OrderOptions& options) {
  return Judge(plan, trace, options).run();
}

std::string_view finding_name(OrderFinding::Kind kind) {
  switch (kind) {
    case OrderFinding::Kind::Unknown:
      return "unknown";
    case OrderFinding::Kind::Twice:
      return "twice";
    case OrderFinding::Kind::Missing:
      return "missing";
    case OrderFinding::Kind::WrongLane:
      return "wrong-lane";
    case OrderFinding::Kind::LaneOrder:
      return "lane-order";
    case OrderFinding::Kind::Wait:
      return "wait";
    case OrderFinding::Kind::Arrival:
      return "arrival";
  }
  return "";
}

}  // namespace dbo
