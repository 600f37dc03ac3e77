#include "sim/sched/notation.h"

#include <algorithm>
#include <map>

#include "sim/base/error.h"
#include "sim/plan/linearise.h"
#include "sim/plan/steady.h"
#include "sim/sched/plan_builder.h"

namespace dbo {
namespace {

constexpr std::string_view kPrime = "\xE2\x80\xB2";      // U+2032
constexpr std::string_view kEnDash = "\xE2\x80\x93";     // U+2013
constexpr std::string_view kSubscript = "\xE2\x82\x80";  // U+2080, the digit 0; digits follow one another

/// Splits a row into words at blanks, column marks, dashes and commas.
std::vector<std::string_view> words(std::string_view row) {
  std::vector<std::string_view> out;
  std::size_t begin = 0, i = 0;
  const auto flush = [&](std::size_t end) {
    if (end > begin) out.push_back(row.substr(begin, end - begin));
  };
  while (i < row.size()) {
    const bool dash = row.substr(i).starts_with(kEnDash);
    const char c = row[i];
    if (dash || c == ' ' || c == '\t' || c == '\n' || c == '|' || c == '-' || c == ',') {
      flush(i);
      i += dash ? kEnDash.size() : 1;
      begin = i;
    } else {
      ++i;
    }
  }
  flush(row.size());
  return out;
}

int strip_primes(std::string_view& word) {
  int primes = 0;
  for (;;) {
    if (word.ends_with('\'')) {
      word.remove_suffix(1);
    } else if (word.ends_with(kPrime)) {
      word.remove_suffix(kPrime.size());
    } else {
      return primes;
    }
    ++primes;
  }
}

/// The ubatch number at the end of the word ("_0", "_12", "₀"), which is cut off; -1 when there is none.
int strip_ubatch(std::string_view& word) {
  int number = 0, digits = 0, scale = 1;
  while (word.size() >= 3 && word.substr(word.size() - 3, 2) == kSubscript.substr(0, 2)) {
    const int digit = static_cast<unsigned char>(word.back()) - 0x80;
    if (digit < 0 || digit > 9 || ++digits > 2) return -1;
    number += digit * scale;
    scale *= 10;
    word.remove_suffix(3);
  }
  if (digits > 0) return number;
  const std::size_t cut = word.find_last_of('_');
  if (cut == std::string_view::npos || word.size() - cut < 2 || word.size() - cut > 3) return -1;
  for (std::size_t i = cut + 1; i < word.size(); ++i) {
    if (word[i] < '0' || word[i] > '9') return -1;
    number = number * 10 + (word[i] - '0');
  }
  word = word.substr(0, cut);
  return number;
}

[[noreturn]] void fail(const std::string& message) {
  throw InputError(message);
}

/// Names users write; `M` is the field's short form of MLP.
const std::vector<std::string_view> kNames = {"A0", "A1", "D",      "D.send", "D.recv", "MLP",
                                              "S",  "C",  "C.send", "C.recv", "C.copy"};

NotedOp parse_word(std::string_view text) {
  std::string_view word = text;
  NotedOp op;
  op.later = strip_primes(word);
  op.ubatch = strip_ubatch(word);
  if (op.ubatch < 0)
    fail("\"" + std::string(text) + "\" names no ubatch; write for example " + std::string(word.empty() ? "A0" : word) +
         "_0");
  if (word == "M") word = "MLP";
  if (std::find(kNames.begin(), kNames.end(), word) == kNames.end())
    fail("unknown op \"" + std::string(word) + "\" in \"" + std::string(text) + "\" " + known_names(word, kNames));
  op.kind = *find_op_kind(word);
  return op;
}

/// An edge a -> b: b of layer l needs a of layer l - layers.
struct DataEdge {
  OpKind from, to;
  int layers;
};

std::vector<DataEdge> data_edges(bool low_latency, bool shared, bool copy) {
  using enum OpKind;
  std::vector<DataEdge> edges = {{A0, A1, 0}};
  if (low_latency) {
    edges.insert(
        edges.end(),
        {{A1, DSend, 0}, {DSend, DRecv, 0}, {DRecv, MLP, 0}, {MLP, CSend, 0}, {CSend, CRecv, 0}, {CRecv, A0, 1}});
  } else {
    edges.insert(edges.end(), {{A1, D, 0}, {D, MLP, 0}, {MLP, C, 0}});
    if (copy) edges.push_back({C, CCopy, 0});
    edges.push_back({copy ? CCopy : C, A0, 1});
  }
  if (shared) edges.insert(edges.end(), {{A1, S, 0}, {S, A0, 1}});
  return edges;
}

class NotationPlan {
 public:
  NotationPlan(const Notation& notation, const ScheduleSpec& spec)
      : spec_(spec), low_latency_(is_low_latency(notation)) {
    order_ = parse_row(notation.order);
    copy_ = std::any_of(order_.begin(), order_.end(), [](const NotedOp& op) { return op.kind == OpKind::CCopy; });
    check_complete();
    read_lanes(notation);
    edges_ = data_edges(low_latency_, spec_.shape.has_shared(), copy_);
    place_layers();
  }

  Plan make() {
    PlanBuilder b(spec_, low_latency_, copy_);
    const int deepest = std::max_element(order_.begin(), order_.end(), [](const NotedOp& x, const NotedOp& y) {
                          return x.later < y.later;
                        })->later;
    ProgramBuilder body = b.program();
    for (const NotedOp& op : order_) {
      const int layer = (op.later - deepest) * b.stride() + b.moe_offset();
      for (const DataEdge& edge : edges_)
        if (edge.to == op.kind && crosses(edge)) body.wait(event(edge.from, op.ubatch), lane(op.kind));
      if (op.kind == OpKind::A0) dense_prelude(b, body, op, layer);
      body.launch(op.kind, op.ubatch, layer);
      if (op.kind == OpKind::D) body.host_wait_notify(op.kind, op.ubatch, layer);
      if (std::any_of(edges_.begin(), edges_.end(), [&](const DataEdge& e) { return e.from == op.kind && crosses(e); }))
        body.record(event(op.kind, op.ubatch), lane(op.kind));
    }
    b.add_block("moe", body);
    std::vector<int> ubatches;
    for (const NotedOp& op : order_)
      if (op.kind == OpKind::A0) ubatches.push_back(op.ubatch);
    b.add_single_thread("moe", ubatches);
    Plan plan = b.take();
    for (OpDef& op : plan.ops)
      if (const auto found = lanes_.find(op.kind); found != lanes_.end()) op.lane = found->second;
    guard_tail(plan);
    return plan;
  }

 private:
  LaneId lane(OpKind kind) const {
    const auto found = lanes_.find(kind);
    if (found != lanes_.end()) return found->second;
    return is_collective(kind) || kind == OpKind::CCopy ? kCommLane : kComputeLane;
  }
  bool crosses(const DataEdge& edge) const { return lane(edge.from) != lane(edge.to); }
  static std::string event(OpKind kind, int ubatch) {
    return std::string(op_name(kind)) + "_" + std::to_string(ubatch);
  }

  /// The dense layers between two MoE layers (models with every n-th layer MoE) run before the ubatch's A0.
  void dense_prelude(const PlanBuilder& b, ProgramBuilder& body, const NotedOp& op, int layer) const {
    for (int before = b.moe_offset(); before > 0; --before)
      for (const OpKind kind : {OpKind::A0, OpKind::A1, OpKind::FFN}) body.launch(kind, op.ubatch, layer - before);
  }

  /// The model's tail needs the last combines; no later iteration waits for them.
  void guard_tail(Plan& plan) const {
    for (Block& block : plan.blocks) {
      if (block.name != "tail") continue;
      ProgramBuilder waits(plan);
      for (int u = 0; u < spec_.ubatches; ++u)
        for (const DataEdge& edge : edges_)
          if (edge.to == OpKind::A0 && crosses(edge)) waits.wait(event(edge.from, u), kComputeLane);
      Program body = waits.take();
      body.insert(body.end(), block.body.begin(), block.body.end());
      block.body = std::move(body);
    }
  }

  void check_complete() {
    using enum OpKind;
    std::vector<OpKind> needed = low_latency_ ? std::vector<OpKind>{A0, A1, DSend, DRecv, MLP, CSend, CRecv}
                                              : std::vector<OpKind>{A0, A1, D, MLP, C};
    if (copy_) needed.push_back(CCopy);
    if (spec_.shape.has_shared()) needed.push_back(S);
    for (int u = 0; u < spec_.ubatches; ++u) {
      for (const OpKind kind : needed) {
        const auto count = std::count_if(order_.begin(), order_.end(),
                                         [&](const NotedOp& op) { return op.kind == kind && op.ubatch == u; });
        if (count != 1)
          fail("order has " + noted_name({kind, u, 0}) + (count == 0 ? " not at all" : " more than once") +
               "; a period has each op of each ubatch once");
      }
    }
    for (const NotedOp& op : order_)
      if (std::find(needed.begin(), needed.end(), op.kind) == needed.end())
        fail("order has " + noted_name(op) +
             (op.kind == S ? ", but the model has no shared expert"
                           : ", which does not go with the others: either D and C, or their .send and .recv"));
  }

  void read_lanes(const Notation& notation) {
    read_row(notation.compute, "compute", kComputeLane);
    read_row(notation.comm, "comm", kCommLane);
  }

  void read_row(const std::string& text, const char* row, LaneId lane_id) {
    std::vector<NotedOp> ops = parse_row(text);
    if (ops.empty()) return;
    if (low_latency_) {
      // Transfers are noted on the comm row; their kernels are in the order and run on compute.
      for (const NotedOp& op : ops)
        if (op.kind == OpKind::C || op.kind == OpKind::D) {
          if (lane_id == kComputeLane)
            fail(std::string("compute has ") + noted_name(op) + ", a transfer; its send and receive are in order");
        }
      std::erase_if(ops, [](const NotedOp& op) { return op.kind == OpKind::C || op.kind == OpKind::D; });
    }
    for (const NotedOp& op : ops) {
      const auto known = std::find_if(order_.begin(), order_.end(),
                                      [&](const NotedOp& o) { return o.kind == op.kind && o.ubatch == op.ubatch; });
      if (known == order_.end()) fail(std::string(row) + " has " + noted_name(op) + ", which order lacks");
      const auto [entry, fresh] = lanes_.emplace(op.kind, lane_id);
      if (!fresh && entry->second != lane_id)
        fail(std::string(op_name(op.kind)) + " is on compute and on comm; an op has one lane");
    }
    check_cyclic(ops, row);
  }

  /// The row must be the order's ops of that row, from any starting point.
  void check_cyclic(const std::vector<NotedOp>& row, const char* name) const {
    std::vector<std::size_t> positions;
    for (const NotedOp& op : row)
      for (std::size_t i = 0; i < order_.size(); ++i)
        if (order_[i].kind == op.kind && order_[i].ubatch == op.ubatch) positions.push_back(i);
    int descents = 0;
    for (std::size_t i = 0; i < positions.size(); ++i)
      if (positions[i] >= positions[(i + 1) % positions.size()] && positions.size() > 1) ++descents;
    if (descents > 1) fail(std::string(name) + " lists its ops in another order than order does");
  }

  /// Layers of the period: as primed, or inferred when nothing is primed.
  void place_layers() {
    const bool primed = std::any_of(order_.begin(), order_.end(), [](const NotedOp& op) { return op.later > 0; });
    // Relaxation of `from.later >= to.later - layers (+ 1 when noted after it)`; a longer chain than ops means a cycle.
    for (std::size_t round = 0; round <= order_.size(); ++round) {
      bool changed = false;
      for (const DataEdge& edge : edges_) {
        for (std::size_t to = 0; to < order_.size(); ++to) {
          if (order_[to].kind != edge.to) continue;
          const std::size_t from = position(edge.from, order_[to].ubatch);
          const int needed = order_[to].later - edge.layers + (from > to ? 1 : 0);
          if (order_[from].later >= needed) continue;
          if (primed || round == order_.size())
            fail(noted_name(order_[to]) + " comes before " + noted_name(order_[from]) + ", which it needs");
          order_[from].later = needed;
          changed = true;
        }
      }
      if (!changed) break;
    }
    int least = order_.front().later;
    for (const NotedOp& op : order_) least = std::min(least, op.later);
    for (NotedOp& op : order_) op.later -= least;
  }

  std::size_t position(OpKind kind, int ubatch) const {
    for (std::size_t i = 0; i < order_.size(); ++i)
      if (order_[i].kind == kind && order_[i].ubatch == ubatch) return i;
    throw InternalError("the order was checked to be complete");
  }

  const ScheduleSpec& spec_;
  bool low_latency_, copy_ = false;
  std::vector<NotedOp> order_;
  std::map<OpKind, LaneId> lanes_;
  std::vector<DataEdge> edges_;
};

void rotate_to_fewest_primes(std::vector<NotedOp>& period, int stride) {
  const std::size_t n = period.size();
  std::vector<NotedOp> best;
  int best_primes = 0;
  for (std::size_t start = 0; start < n; ++start) {
    std::vector<NotedOp> rotated;
    int least = INT32_MAX, sum = 0;
    for (std::size_t i = 0; i < n; ++i) {
      NotedOp op = period[(start + i) % n];
      if (start + i >= n) op.later += stride;
      least = std::min(least, op.later);
      rotated.push_back(op);
    }
    for (NotedOp& op : rotated) {
      op.later = (op.later - least) / stride;
      sum += op.later;
    }
    if (best.empty() || sum < best_primes) {
      best = std::move(rotated);
      best_primes = sum;
    }
  }
  period = std::move(best);
}

}  // namespace

std::vector<NotedOp> parse_row(std::string_view row) {
  std::vector<NotedOp> out;
  for (const std::string_view word : words(row)) out.push_back(parse_word(word));
  return out;
}

bool is_low_latency(const Notation& notation) {
  const std::vector<NotedOp> order = parse_row(notation.order);
  return std::any_of(order.begin(), order.end(), [](const NotedOp& op) { return is_send(op.kind); });
}

int ubatches_of(const Notation& notation) {
  int most = 0;
  for (const NotedOp& op : parse_row(notation.order)) most = std::max(most, op.ubatch + 1);
  if (most == 0) fail("order is empty; it lists one steady period of launches, for example \"A0_0 A1_0 D_0 ...\"");
  return most;
}

Plan make_plan(const Notation& notation, const ScheduleSpec& spec) {
  return NotationPlan(notation, spec).make();
}

std::vector<NotedOp> steady_period(const Plan& plan) {
  const auto block = moe_block(plan, 0);
  if (!block) return {};
  // Enough iterations that the middle ones are far from prologue and epilogue.
  const Linear linear = linearise(with_moe_iterations(plan, 8), 0);
  std::vector<LayerMark> marks;
  for (const LayerMark& mark : linear.marks)
    if (mark.block == *block) marks.push_back(mark);
  if (marks.size() < 6) return {};
  std::vector<NotedOp> period;
  for (std::uint32_t h = marks[4].host; h < marks[5].host; ++h) {
    const HostStep& step = linear.host[h];
    if (step.verb != Verb::Launch) continue;
    const LinearOp& op = linear.ops[step.index];
    const OpKind kind = plan.ops[op.op].kind;
    // Dense layers inside an iteration are not part of the notation.
    if (kind == OpKind::FFN || !plan.shape.is_moe_layer(op.layer)) continue;
    period.push_back({kind, op.ubatch, op.layer});
  }
  if (!period.empty()) rotate_to_fewest_primes(period, moe_stride(plan, 0));
  return period;
}

Notation notation_of(const Plan& plan) {
  const std::vector<NotedOp> period = steady_period(plan);
  Notation out;
  const auto append = [](std::string& row, const std::string& word) {
    row += (row.empty() || row.ends_with("| ") ? "" : " ") + word;
  };
  const auto mark = [](std::string& row) {
    if (!row.empty() && !row.ends_with("| ")) row += " | ";
  };
  for (const NotedOp& op : period) {
    append(out.order, noted_name(op));
    const auto id = plan.find_op(op_name(op.kind));
    const bool comm = id && plan.ops[*id].lane == kCommLane;
    if (is_send(op.kind) || is_recv(op.kind)) {
      mark(out.compute);
      if (is_send(op.kind)) {
        mark(out.comm);
        append(out.comm, noted_name({op.kind == OpKind::DSend ? OpKind::D : OpKind::C, op.ubatch, op.later}));
      }
    } else {
      append(comm ? out.comm : out.compute, noted_name(op));
    }
  }
  for (std::string* row : {&out.compute, &out.comm})
    if (row->ends_with(" | ")) row->resize(row->size() - 3);
  return out;
}

std::string noted_name(const NotedOp& op) {
  std::string text(op_name(op.kind));
  for (const char digit : std::to_string(op.ubatch)) {
    std::string subscript(kSubscript);
    subscript.back() = static_cast<char>(subscript.back() + (digit - '0'));
    text += subscript;
  }
  for (int i = 0; i < op.later; ++i) text += kPrime;
  return text;
}

}  // namespace dbo
