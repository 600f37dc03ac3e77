#include "validate/fault.h"

#include <algorithm>

#include "sim/base/error.h"

namespace dbo::validate {
namespace {

// Far longer than what a lane takes to go on, so that a race is always lost; short beside a step.
constexpr Ns kDelay{100'000};

/// A place in the middle of a list: warm, and with a layer before and behind it.
template <typename T>
const T& middle(const std::vector<T>& places) {
  return places[places.size() / 2];
}

class Planner {
 public:
  Planner(std::string_view code, const Plan& plan, const Linear& linear, Ns unsplit_step)
      : plan_(plan), linear_(linear), unsplit_step_(unsplit_step) {
    fault_.code = code;
  }

  Fault run() {
    if (fault_.code == "F3") late_event();
    if (fault_.code == "F4") wrong_stream();
    if (fault_.code == "F5") missing_wait();
    if (fault_.code == "F7") lost_hook();
    if (fault_.code == "F8") shared_buffer();
    if (fault_.code == "F12") routed_padding();
    if (fault_.code == "F14") freed_memory();
    if (fault_.code == "F16") no_benefit();
    if (fault_.code == "F17") starved();
    return std::move(fault_);
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const { throw InputError("--inject " + fault_.code + ": " + why); }
  OpKind kind(std::uint32_t op) const { return plan_.op(linear_.ops[op].op).kind; }
  std::string name(std::uint32_t op) const { return describe(plan_, linear_.ops[op]); }

  /// The op nearest to a place of a lane's queue, backwards or forwards.
  std::optional<std::uint32_t> op_before(LaneId lane, std::uint32_t position) const {
    for (std::uint32_t i = position; i-- > 0;)
      if (linear_.queues[lane][i].kind == QueueItem::Kind::Op) return linear_.queues[lane][i].index;
    return std::nullopt;
  }
  std::optional<std::uint32_t> op_after(LaneId lane, std::uint32_t position) const {
    for (std::uint32_t i = position + 1; i < linear_.queues[lane].size(); ++i)
      if (linear_.queues[lane][i].kind == QueueItem::Kind::Op) return linear_.queues[lane][i].index;
    return std::nullopt;
  }

  /// A transfer that waits for a record on compute, and the compute ops launched between that record and the wait.
  struct Handover {
    std::uint32_t record = 0, transfer = 0;
    std::vector<std::uint32_t> between;
  };
  std::vector<Handover> handovers() const {
    std::vector<Handover> found;
    for (const LinearWait& wait : linear_.waits) {
      if (wait.record == kNone || wait.lane == kComputeLane) continue;
      const LinearRecord& record = linear_.records[wait.record];
      const auto transfer = op_after(wait.lane, wait.position);
      if (record.lane != kComputeLane || !transfer) continue;
      Handover handover{wait.record, *transfer, {}};
      for (std::uint32_t host = record.host + 1; host < wait.host; ++host) {
        const HostStep& step = linear_.host[host];
        if (step.verb == Verb::Launch && linear_.ops[step.index].lane == kComputeLane)
          handover.between.push_back(step.index);
      }
      if (!handover.between.empty()) found.push_back(std::move(handover));
    }
    return found;
  }

  void late_event() {
    const std::vector<Handover> places = handovers();
    if (places.empty())
      refuse(
          "no transfer waits for an event that other work is launched behind; take a high-throughput schedule "
          "(vllm-ht, sglang-prefill) with lsa-ht, copy-engine or nccl");
    for (const Handover& place : places) {
      fault_.late_records.push_back(place.record);
      // What the late event waits for last is what has to be long.
      fault_.longer[place.between.back()] = kDelay;
    }
    fault_.what = "the events that " + std::to_string(places.size()) +
                  " transfers wait for are recorded behind the other ubatch's work, " + name(places[0].transfer) +
                  " the first of them";
  }

  void wrong_stream() {
    // A dispatch kernel among compute keeps every dependency; a send of low latency that runs ahead of its turn would
    // break the exchange itself, so there the shared expert moves.
    std::vector<std::uint32_t> kernels, experts;
    for (std::uint32_t op = 0; op < linear_.ops.size(); ++op) {
      if (kind(op) == OpKind::D && linear_.ops[op].lane != kComputeLane) kernels.push_back(op);
      if (kind(op) == OpKind::S && linear_.ops[op].lane == kComputeLane) experts.push_back(op);
    }
    const std::vector<std::uint32_t>& places = kernels.empty() ? experts : kernels;
    if (places.empty() || plan_.lanes.size() < 2)
      refuse("the plan has neither a dispatch kernel nor a shared expert that could run on another lane");
    const std::uint32_t op = middle(places);
    fault_.moved_op = op;
    fault_.moved_to = kernels.empty() ? kCommLane : kComputeLane;
    fault_.what = name(op) + " is launched on lane " + plan_.lanes[fault_.moved_to] + " instead of " +
                  plan_.lanes[linear_.ops[op].lane];
  }

  void missing_wait() {
    struct Place {
      std::uint32_t wait, producer, consumer;
    };
    std::vector<Place> dispatches, any;
    for (std::uint32_t i = 0; i < linear_.waits.size(); ++i) {
      const LinearWait& wait = linear_.waits[i];
      if (wait.record == kNone || wait.lane != kComputeLane) continue;
      const LinearRecord& record = linear_.records[wait.record];
      const auto producer = op_before(record.lane, record.position), consumer = op_after(wait.lane, wait.position);
      if (record.lane == wait.lane || !producer || !consumer || !is_collective(kind(*producer))) continue;
      any.push_back({i, *producer, *consumer});
      if (is_dispatch(kind(*producer)) && kind(*consumer) == OpKind::MLP) dispatches.push_back(any.back());
    }
    const std::vector<Place>& places = dispatches.empty() ? any : dispatches;
    if (places.empty())
      refuse(
          "no compute op waits for another lane's event; take a high-throughput schedule (vllm-ht, sglang-prefill) "
          "with lsa-ht, copy-engine or nccl");
    const Place& place = middle(places);
    fault_.dropped_waits = {place.wait};
    fault_.longer[place.producer] = kDelay;
    fault_.what = name(place.consumer) + " does not wait for " + name(place.producer);
  }

  void lost_hook() {
    std::vector<std::uint32_t> places;
    for (std::uint32_t op = 0; op < linear_.ops.size(); ++op)
      if (kind(op) == OpKind::DRecv) places.push_back(op);
    if (places.empty())
      refuse(
          "the plan has no receives; take a low-latency schedule (vllm-ll, sglang-decode) with lsa-ll or copy-engine");
    fault_.dropped_ops = {middle(places)};
    fault_.what = "the receive hook with " + name(fault_.dropped_ops[0]) + " is never run";
  }

  void need_two_ubatches() const {
    for (const LinearOp& op : linear_.ops)
      if (op.ubatch > 0) return;
    refuse("the step is not split");
  }

  void shared_buffer() {
    need_two_ubatches();
    fault_.share_rows = true;
    fault_.what = "ubatches share one buffer for the input of their experts";
  }

  void routed_padding() {
    bool padded = false;
    for (const Load& load : plan_.loads)
      for (const UbatchLoad& ubatch : load.ubatches) padded = padded || ubatch.padded > ubatch.tokens();
    if (!padded)
      refuse(
          "no ubatch of this step has padding; give \"execution\": {\"graph_sizes\": [...]} or \"padded_tokens\" "
          "above the tokens there are");
    fault_.route_padding = true;
    fault_.what = "padding rows pick experts as if they were tokens";
  }

  void freed_memory() {
    // Written by a combine, read by the next layer's attention: what lies between is the other ubatch's.
    std::vector<std::uint32_t> places;
    for (std::uint32_t op = 0; op < linear_.ops.size(); ++op) {
      if (kind(op) != OpKind::C && kind(op) != OpKind::CRecv) continue;
      if (linear_.ops[op].layer + 1 < plan_.shape.layers) places.push_back(op);
    }
    if (places.empty()) refuse("no layer reads what a combine wrote");
    fault_.freed_after = middle(places);
    fault_.what = "the memory " + name(*fault_.freed_after) + " wrote is given to somebody else before it is read";
  }

  void no_benefit() {
    std::vector<std::uint32_t> compute;
    for (std::uint32_t op = 0; op < linear_.ops.size(); ++op)
      if (is_compute(kind(op)) && linear_.ops[op].lane == kComputeLane) compute.push_back(op);
    if (compute.empty()) refuse("the plan computes nothing");
    need_two_ubatches();
    const Ns each{unsplit_step_.count() / static_cast<std::int64_t>(compute.size()) + 1'000};
    for (const std::uint32_t op : compute) fault_.longer[op] = each;
    fault_.what = "every compute op of the split step lasts " + std::to_string(each.count() / 1000) +
                  " us longer, together an un-split step";
  }

  void starved() {
    if (plan_.sm.control == SmControl::GreenContext && plan_.sm.comm > 0)
      refuse("green contexts keep compute off the SMs of communication; take sm_control limit or none");
    const std::vector<Handover> places = handovers();
    std::size_t kernels = 0;
    for (const Handover& place : places) {
      if (!is_collective(kind(place.transfer)) || !is_dispatch(kind(place.transfer))) continue;
      // The first op behind the record: its kernel is there when the transfer's wants to begin.
      fault_.longer[place.between.front()] = kDelay;
      ++kernels;
    }
    if (kernels == 0)
      refuse(
          "no dispatch kernel runs beside compute; take a high-throughput schedule (vllm-ht, sglang-prefill) with "
          "lsa-ht, copy-engine or nccl");
    fault_.takes_all_sms = true;
    fault_.what = "the compute op beside each of " + std::to_string(kernels) + " dispatches fills every SM";
  }

  const Plan& plan_;
  const Linear& linear_;
  Ns unsplit_step_;
  Fault fault_;
};

}  // namespace

const std::vector<std::string_view>& fault_codes() {
  static const std::vector<std::string_view> kCodes = {"F3", "F4", "F5", "F7", "F8", "F12", "F14", "F16", "F17"};
  return kCodes;
}

Fault plan_fault(std::string_view code, const Plan& plan, const Linear& linear, Ns unsplit_step) {
  const auto& codes = fault_codes();
  if (std::find(codes.begin(), codes.end(), code) == codes.end()) {
    std::string known;
    for (const std::string_view one : codes) known += (known.empty() ? "" : ", ") + std::string(one);
    throw InputError("--inject \"" + std::string(code) + "\": a replay can show " + known);
  }
  return Planner(code, plan, linear, unsplit_step).run();
}

Linear given_order(const Linear& linear, const Fault& fault) {
  Linear given = linear;
  if (!fault.moved_op) return given;
  LinearOp& op = given.ops[*fault.moved_op];
  std::erase_if(given.queues[op.lane], [&](const QueueItem& item) {
    return item.kind == QueueItem::Kind::Op && item.index == *fault.moved_op;
  });
  op.lane = fault.moved_to;
  // Where on the other lane: behind all that the host enqueued there before.
  auto& queue = given.queues[op.lane];
  const auto host_of = [&](const QueueItem& item) {
    switch (item.kind) {
      case QueueItem::Kind::Op:
        return given.ops[item.index].host;
      case QueueItem::Kind::Record:
        return given.records[item.index].host;
      case QueueItem::Kind::Wait:
        return given.waits[item.index].host;
    }
    return std::uint32_t{0};
  };
  const auto place =
      std::find_if(queue.begin(), queue.end(), [&](const QueueItem& item) { return host_of(item) > op.host; });
  queue.insert(place, {QueueItem::Kind::Op, *fault.moved_op});
  for (const auto& lane : given.queues) {
    for (std::uint32_t i = 0; i < lane.size(); ++i) {
      switch (lane[i].kind) {
        case QueueItem::Kind::Op:
          given.ops[lane[i].index].position = i;
          break;
        case QueueItem::Kind::Record:
          given.records[lane[i].index].position = i;
          break;
        case QueueItem::Kind::Wait:
          given.waits[lane[i].index].position = i;
          break;
      }
    }
  }
  return given;
}

}  // namespace dbo::validate
