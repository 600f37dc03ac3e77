#include "sim/engine/tape.h"

#include <algorithm>

#include "sim/base/error.h"
#include "sim/plan/steady.h"

namespace dbo {
namespace {

/// Numbers what instructions define for others to wait for: events with a wait, ends of ops the host waits for.
struct Values {
  std::vector<std::uint32_t> of_record, of_op;      ///< number, kNone: nobody waits for it
  std::vector<std::uint32_t> defined_at, last_use;  ///< by number: host steps
};

Values number_values(const Linear& linear) {
  Values values;
  std::vector<std::uint32_t> record_use(linear.records.size(), kNone), op_use(linear.ops.size(), kNone);
  for (const LinearWait& wait : linear.waits)
    if (wait.record != kNone) record_use[wait.record] = wait.host;
  for (std::uint32_t h = 0; h < linear.host.size(); ++h)
    if (linear.host[h].verb == Verb::HostWait && !linear.host[h].notify) op_use[linear.host[h].index] = h;
  values.of_record.assign(linear.records.size(), kNone);
  values.of_op.assign(linear.ops.size(), kNone);
  for (std::uint32_t h = 0; h < linear.host.size(); ++h) {
    const HostStep& step = linear.host[h];
    const bool record = step.verb == Verb::Record, launch = step.verb == Verb::Launch;
    if (!record && !launch) continue;
    const std::uint32_t use = record ? record_use[step.index] : op_use[step.index];
    if (use == kNone) continue;
    (record ? values.of_record : values.of_op)[step.index] = static_cast<std::uint32_t>(values.defined_at.size());
    values.defined_at.push_back(h);
    values.last_use.push_back(use);
  }
  return values;
}

/// Gives each value a slot that no other one has from its definition to its last use.
void assign_slots(const Values& values, Tape& tape) {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> ends;  // last use, value
  for (std::uint32_t v = 0; v < values.last_use.size(); ++v) ends.emplace_back(values.last_use[v], v);
  std::sort(ends.begin(), ends.end());
  std::vector<std::uint32_t> free;
  std::size_t ended = 0;
  tape.values = static_cast<std::uint32_t>(values.last_use.size());
  tape.slot_of_value.assign(values.last_use.size(), kNone);
  for (std::uint32_t v = 0; v < values.defined_at.size(); ++v) {
    for (; ended < ends.size() && ends[ended].first < values.defined_at[v]; ++ended)
      free.push_back(tape.slot_of_value[ends[ended].second]);
    if (free.empty()) free.push_back(tape.slots++);
    tape.slot_of_value[v] = free.back();
    free.pop_back();
  }
}

TapeStep::Kind kind_of(OpKind kind) {
  if (is_send(kind)) return TapeStep::Kind::Send;
  if (is_recv(kind)) return TapeStep::Kind::Recv;
  if (is_collective(kind)) return TapeStep::Kind::Collective;
  return TapeStep::Kind::Launch;
}

/// Adds `what` to the marks in (begin, end]: those that lie between its definition and its last use.
void add_live(std::vector<TapeMark>& marks, std::uint32_t begin, std::uint32_t end, std::uint32_t what,
              std::vector<std::uint32_t> TapeMark::*list) {
  auto mark = std::upper_bound(marks.begin(), marks.end(), begin,
                               [](std::uint32_t step, const TapeMark& m) { return step < m.step; });
  for (; mark != marks.end() && mark->step <= end; ++mark) ((*mark).*list).push_back(what);
}

void find_live(const Values& values, Tape& tape) {
  for (std::uint32_t v = 0; v < values.defined_at.size(); ++v)
    add_live(tape.marks, values.defined_at[v], values.last_use[v], v, &TapeMark::live_values);
  // A call lives from its send to its receive, or from its kernel's launch to the host's wait for its counts.
  std::vector<std::uint32_t> begin(tape.tags, kNone), end(tape.tags, 0);
  for (std::uint32_t s = 0; s < tape.steps.size(); ++s) {
    const TapeStep& step = tape.steps[s];
    if (step.tag == kNone) continue;
    begin[step.tag] = std::min(begin[step.tag], s);
    end[step.tag] = s;
  }
  for (std::uint32_t tag = 0; tag < tape.tags; ++tag)
    if (begin[tag] != kNone) add_live(tape.marks, begin[tag], end[tag], tag, &TapeMark::live_tags);
}

/// A step with its numbers counted from the iteration's own.
TapeStep relative(const TapeStep& step, const TapeMark& mark, std::uint32_t tags_per_layer) {
  TapeStep out = step;
  out.slot = kNone;
  // Wrapping differences: numbers before the iteration's first are as good.
  if (out.op != kNone) out.op -= mark.op;
  if (out.value != kNone) out.value -= mark.value;
  if (out.tag != kNone) out.tag -= static_cast<std::uint32_t>(mark.layer) * tags_per_layer;
  return out;
}

bool same(const TapeStep& a, const TapeStep& b) {
  return a.kind == b.kind && a.lane == b.lane && a.notify == b.notify && a.crosses == b.crosses && a.last == b.last &&
         a.op == b.op && a.value == b.value && a.tag == b.tag && a.cost == b.cost && a.wire == b.wire &&
         a.host == b.host;
}

bool same_iteration(const Tape& tape, std::size_t a, std::size_t b, std::uint32_t tags_per_layer) {
  const TapeMark &first = tape.marks[a], &second = tape.marks[b];
  const std::uint32_t length = tape.marks[a + 1].step - first.step;
  if (tape.marks[b + 1].step - second.step != length) return false;
  if (tape.marks[a + 1].op - first.op != tape.marks[b + 1].op - second.op) return false;
  if (tape.marks[a + 1].value - first.value != tape.marks[b + 1].value - second.value) return false;
  for (std::uint32_t s = 0; s < length; ++s)
    if (!same(relative(tape.steps[first.step + s], first, tags_per_layer),
              relative(tape.steps[second.step + s], second, tags_per_layer)))
      return false;
  return true;
}

void number_contents(Tape& tape, std::uint32_t tags_per_layer) {
  std::vector<std::size_t> examples;
  for (std::size_t m = 0; m + 1 < tape.marks.size(); ++m) {
    std::size_t e = 0;
    while (e < examples.size() && !same_iteration(tape, examples[e], m, tags_per_layer)) ++e;
    if (e == examples.size()) examples.push_back(m);
    tape.marks[m].content = static_cast<int>(e);
  }
}

void mark_last_ops(Tape& tape, std::size_t lanes) {
  std::vector<char> seen(lanes, 0);
  for (auto step = tape.steps.rbegin(); step != tape.steps.rend(); ++step) {
    if (step->kind > TapeStep::Kind::Collective || seen[step->lane]) continue;
    seen[step->lane] = 1;
    step->last = true;
  }
}

}  // namespace

std::uint32_t TapeMaker::tag(const LinearOp& op) const {
  const bool dispatch = is_dispatch(plan_.ops[op.op].kind);
  return static_cast<std::uint32_t>(op.layer + 1) * tags_per_layer() + op.ubatch * 2u + (dispatch ? 1u : 0u);
}

std::uint32_t TapeMaker::cost(Tape& tape, std::size_t program, const LinearOp& op, std::uint32_t op_index) {
  const auto [begin, end] = folding_.of_program[program];
  const bool own = op_index != kNone && op_index < costs_.by_plan_op.size() && costs_.by_plan_op[op_index] >= Ns{};
  const int layer_class = costs_.layer_class(op.layer);
  const std::size_t index =
      (static_cast<std::size_t>(layer_class) * static_cast<std::size_t>(costs_.ubatches()) + op.ubatch) *
          plan_.ops.size() +
      op.op;
  if (index >= cost_index_.size()) cost_index_.resize(index + 1, kNone);
  if (!own && cost_index_[index] != kNone) return cost_index_[index];
  const auto at = static_cast<std::uint32_t>(tape.times.size());
  for (int g = begin; g < end; ++g) {
    const OpCost& c = costs_.at(folding_.groups[static_cast<std::size_t>(g)].cost_group, layer_class, op.ubatch, op.op);
    tape.times.push_back(own ? costs_.by_plan_op[op_index].count() : c.time.count());
    tape.wires.push_back(c.wire.count());
    tape.peers.push_back(c.peers.count());
    tape.notifies.push_back(c.notify.count());
    tape.data_after.push_back(c.data_after.count());
    tape.data_floor.push_back(c.data_floor.count());
  }
  if (!own) cost_index_[index] = at;
  return at;
}

TapeStep TapeMaker::launch(Tape& tape, std::size_t program, const Linear& linear, std::uint32_t op_index) {
  const LinearOp& op = linear.ops[op_index];
  TapeStep step;
  step.kind = kind_of(plan_.ops[op.op].kind);
  step.lane = op.lane;
  step.op = op_index;
  step.cost = cost(tape, program, op, op_index);
  if (step.kind != TapeStep::Kind::Launch) step.tag = tag(op);
  if (step.kind == TapeStep::Kind::Send) {
    LinearOp recv = op;
    recv.op = *plan_.ops[op.op].pairs;
    step.wire = cost(tape, program, recv, op.pair);
  }
  return step;
}

Tape TapeMaker::make(std::size_t program, const Linear& linear) {
  Tape tape;
  cost_index_.clear();
  const Values values = number_values(linear);
  assign_slots(values, tape);
  const bool graph = plan_.execution == Execution::Graph;
  const HostCosts none{};
  const HostCosts& host = graph ? none : costs_.host;
  const bool host_blocks = costs_.host_blocks && !graph;
  tape.steps.reserve(linear.host.size());
  std::vector<TapeMark> marks;
  const auto block = moe_block(plan_, folding_.class_of_program[program]);
  std::size_t next_mark = 0;
  std::uint32_t ops = 0, defined = 0;
  for (const HostStep& h : linear.host) {
    for (; next_mark < linear.marks.size() && linear.marks[next_mark].host == tape.steps.size(); ++next_mark) {
      const LayerMark& mark = linear.marks[next_mark];
      if (block && mark.block == *block) tape.marks.push_back({mark.host, ops, defined, mark.layer, -1, {}, {}});
    }
    TapeStep step;
    switch (h.verb) {
      case Verb::Launch:
        step = launch(tape, program, linear, h.index);
        step.value = values.of_op[h.index];
        step.host = host.launch;
        ++ops;
        break;
      case Verb::Record:
        step.kind = TapeStep::Kind::Record;
        step.lane = linear.records[h.index].lane;
        step.value = values.of_record[h.index];
        step.host = host.record;
        break;
      case Verb::Wait: {
        const LinearWait& wait = linear.waits[h.index];
        step.kind = TapeStep::Kind::Wait;
        step.lane = wait.lane;
        if (wait.record != kNone) {
          step.value = values.of_record[wait.record];
          step.crosses = linear.records[wait.record].lane != wait.lane;
        }
        step.host = host.wait;
        break;
      }
      case Verb::HostWait: {
        const LinearOp& op = linear.ops[h.index];
        step.kind = host_blocks ? TapeStep::Kind::HostWait : TapeStep::Kind::HostOnly;
        step.lane = op.lane;
        if (!host_blocks) break;
        step.op = h.index;
        step.notify = h.notify;
        step.cost = cost(tape, program, op, h.index);
        // Only a kernel that all ranks run together has counts to wait for.
        if (h.notify && is_collective(plan_.ops[op.op].kind)) step.tag = tag(op);
        if (!h.notify) step.value = values.of_op[h.index];
        tape.host_waits = true;
        break;
      }
      case Verb::Yield:
        step.kind = TapeStep::Kind::HostOnly;
        step.host = host.yield;
        break;
      case Verb::Hook:
      case Verb::RunHook:
      case Verb::Exit:
        step.kind = TapeStep::Kind::HostOnly;
        break;
      case Verb::Repeat:
      case Verb::Block:
        throw InternalError("a linear order holds a repeat or block");
    }
    if (step.value != kNone) step.slot = tape.slot_of_value[step.value];
    const bool defines = step.kind <= TapeStep::Kind::Record && step.value != kNone;
    if (defines) ++defined;
    if (step.tag != kNone) tape.tags = std::max(tape.tags, step.tag + 1);
    tape.steps.push_back(step);
  }
  mark_last_ops(tape, plan_.lanes.size());
  number_contents(tape, tags_per_layer());
  find_live(values, tape);
  return tape;
}

int repeated_cycles(const std::vector<Tape>& tapes, int from, int cycle) {
  int whole = INT32_MAX;
  for (const Tape& tape : tapes) {
    const int last = static_cast<int>(tape.marks.size()) - 1;
    int m = from;
    while (m < last && m >= cycle &&
           tape.marks[static_cast<std::size_t>(m)].content == tape.marks[static_cast<std::size_t>(m - cycle)].content)
      ++m;
    whole = std::min(whole, (m - from) / cycle);
  }
  return tapes.empty() ? 0 : std::max(whole, 0);
}

bool alive_alike(const std::vector<Tape>& tapes, int from, int to, std::uint32_t tags_per_layer) {
  const auto has = [](const std::vector<std::uint32_t>& sorted, std::uint32_t number) {
    return std::binary_search(sorted.begin(), sorted.end(), number);
  };
  for (const Tape& tape : tapes) {
    const TapeMark &here = tape.marks[static_cast<std::size_t>(from)],
                   &there = tape.marks[static_cast<std::size_t>(to)];
    for (const std::uint32_t value : there.live_values)
      if (!has(here.live_values, value - (there.value - here.value))) return false;
    const auto tags = static_cast<std::uint32_t>(there.layer - here.layer) * tags_per_layer;
    for (const std::uint32_t tag : there.live_tags)
      if (!has(here.live_tags, tag - tags)) return false;
  }
  return true;
}

}  // namespace dbo
