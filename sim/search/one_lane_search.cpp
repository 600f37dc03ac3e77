// Low latency: a shortest path. Its length is the time the lane stands still, as the work is the same for every order.
#include <algorithm>
#include <numeric>
#include <tuple>

#include "sim/base/error.h"
#include "sim/search/order_search.h"

namespace dbo {
namespace {

using enum OpKind;

constexpr int kChain = 7;  ///< A0 A1 D.send D.recv MLP C.send C.recv; S beside it
constexpr OpKind kOps[kChain] = {A0, A1, DSend, DRecv, MLP, CSend, CRecv};
constexpr int kMostUbatches = 8;
constexpr int kMostCalls = 2;              ///< under way; more than any transport has buffers for
constexpr std::int64_t kResolution = 512;  ///< ranges of a call under way are halved down to this part of a cycle
constexpr int kReceived = 15;              ///< in the place of a call that was received before an older one

/// Where one ubatch stands: the next op of its chain, and whether its shared expert has run in that layer.
struct Stand {
  int next = 0;
  bool shared_done = false;

  auto operator<=>(const Stand&) const = default;
};

/// What happened since the start of the path, and the calls under way in the order they were sent.
struct State {
  std::uint64_t key = 0;  ///< 4 bits an ubatch (ops of the chain done, S done), then 4 bits a call under way
  std::int64_t still = 0;
  std::int64_t left[kMostCalls] = {};  ///< time until each call's data arrives
  std::uint32_t parent = 0;
  OrderOp op;
};

class Path {
 public:
  /// `left`: how long the call that is under way at the start still takes, if there is one. Paths that stand still for
  /// `limit` or longer are not followed up.
  Path(const OrderTask& task, const std::vector<Stand>& start, std::int64_t left, std::int64_t limit)
      : task_(task), start_(start), limit_(limit) {
    levels_.push_back({State{}});
    open_calls_of_start(levels_[0][0], left);
  }

  /// False when `keep_going` ended it.
  bool run(const KeepGoing& keep_going, std::int64_t& states) {
    const int length = task_.ubatches * (task_.shared ? kChain + 1 : kChain);
    for (int step = 0; step < length; ++step) {
      std::vector<State> next;
      for (std::uint32_t i = 0; i < levels_.back().size(); ++i) {
        if ((++states & 0xfff) == 0 && !keep_going()) return false;
        expand(levels_.back()[i], i, next);
      }
      prune(next);
      levels_.push_back(std::move(next));
    }
    const std::uint64_t goal = levels_[0][0].key | done_key();
    for (std::uint32_t i = 0; i < levels_.back().size(); ++i)
      if (levels_.back()[i].key == goal) ends_.push_back(i);
    return true;
  }

  bool found() const { return !ends_.empty(); }

  /// The least time to stand still in a period that ends as it began, with at most `left` to go of the call under way:
  /// where more is left, the lane waits for it.
  std::int64_t still(std::int64_t left) const {
    std::int64_t least = INT64_MAX;
    for (const std::uint32_t end : ends_) least = std::min(least, still_of(end, left));
    return least;
  }
  LaunchOrder order(std::int64_t left) const {
    std::uint32_t at = ends_.front();
    for (const std::uint32_t end : ends_)
      if (still_of(end, left) < still_of(at, left)) at = end;
    LaunchOrder order;
    for (std::size_t level = levels_.size() - 1; level > 0; --level) {
      order.push_back(levels_[level][at].op);
      at = levels_[level][at].parent;
    }
    std::reverse(order.begin(), order.end());
    return order;
  }

 private:
  int calls_shift() const { return 4 * kMostUbatches; }
  int done(const State& s, int u) const { return static_cast<int>(s.key >> (4 * u)) & 7; }
  bool shared_run(const State& s, int u) const { return ((s.key >> (4 * u + 3)) & 1) != 0; }
  std::uint64_t done_key() const {
    std::uint64_t key = 0;
    for (int u = 0; u < task_.ubatches; ++u)
      key |= (std::uint64_t{7} | (task_.shared ? std::uint64_t{8} : 0)) << (4 * u);
    return key;
  }

  // Calls are numbered 2u + 1 (dispatch) and 2u + 2 (combine), so that no call is 0. Up to 7 ubatches fit in 4 bits.
  int call_at(const State& s, int i) const { return static_cast<int>(s.key >> (calls_shift() + 4 * i)) & 15; }
  int calls(const State& s) const {
    int n = 0;
    while (n < task_.in_flight && call_at(s, n) != 0) ++n;
    return n;
  }

  std::int64_t still_of(std::uint32_t end, std::int64_t left) const {
    const State& s = levels_.back()[end];
    return s.still + std::max<std::int64_t>(0, s.left[0] - left);
  }

  /// Calls under way at the start: those between send and receive.
  void open_calls_of_start(State& s, std::int64_t left) const {
    int n = 0;
    for (int u = 0; u < task_.ubatches; ++u) {
      const int next = start_[static_cast<std::size_t>(u)].next;
      if (next == 3) s.key |= static_cast<std::uint64_t>(2 * u + 1) << (calls_shift() + 4 * n++);
      if (next == 6) s.key |= static_cast<std::uint64_t>(2 * u + 2) << (calls_shift() + 4 * n++);
    }
    if (n > 0) s.left[0] = left;
  }

  void expand(const State& s, std::uint32_t index, std::vector<State>& out) const {
    for (int u = 0; u < task_.ubatches; ++u) {
      const Stand& stand = start_[static_cast<std::size_t>(u)];
      const int count = done(s, u);
      const int next = (stand.next + count) % kChain;
      const bool wrapped = stand.next == 0 ? count > 0 : stand.next + count > kChain;  // A0 of the next layer has run
      const bool run = shared_run(s, u);
      const bool shared_done = !task_.shared || (wrapped ? stand.shared_done && run : stand.shared_done || run);
      if (count < kChain && (next != 0 || shared_done)) try_op(s, index, {kOps[next], u}, out);
      // S of this layer, once a path: behind A1, before the next A0.
      if (task_.shared && !run && !shared_done && next != 1) try_op(s, index, {S, u}, out);
    }
  }

  void try_op(const State& s, std::uint32_t index, OrderOp op, std::vector<State>& out) const {
    State t = s;
    t.parent = index;
    t.op = op;
    t.key += op.kind == S ? std::uint64_t{8} << (4 * op.ubatch) : std::uint64_t{1} << (4 * op.ubatch);
    std::int64_t elapsed = task_.node_gap + task_.time(op.kind, op.ubatch);
    const int open = calls(s);
    if (is_recv(op.kind)) {
      const int call = 2 * op.ubatch + (op.kind == DRecv ? 1 : 2);
      int i = 0;
      while (call_at(s, i) != call) ++i;
      const std::int64_t wait = std::max<std::int64_t>(0, s.left[i] - task_.node_gap);
      elapsed += wait;
      t.still += wait;
      if (t.still >= limit_) return;
      pass(t, open, elapsed);
      // Its place is free once every older call is received too.
      set_call(t, i, kReceived);
      while (call_at(t, 0) == kReceived) {
        for (int j = 0; j + 1 < kMostCalls; ++j) {
          set_call(t, j, call_at(t, j + 1));
          t.left[j] = t.left[j + 1];
        }
        set_call(t, kMostCalls - 1, 0);
        t.left[kMostCalls - 1] = 0;
      }
    } else if (is_send(op.kind)) {
      if (open == task_.in_flight) return;
      pass(t, open, elapsed);
      const bool dispatch = op.kind == DSend;
      // The port carries one wire after the other.
      const std::int64_t port = open > 0 ? t.left[open - 1] : 0;
      t.left[open] = port + task_.time(dispatch ? DWire : CWire, op.ubatch);
      set_call(t, open, 2 * op.ubatch + (dispatch ? 1 : 2));
    } else {
      pass(t, open, elapsed);
    }
    out.push_back(t);
  }

  static void pass(State& s, int open, std::int64_t elapsed) {
    for (int i = 0; i < open; ++i) s.left[i] = std::max<std::int64_t>(0, s.left[i] - elapsed);
  }

  void set_call(State& s, int i, int call) const {
    const int shift = calls_shift() + 4 * i;
    s.key = (s.key & ~(std::uint64_t{15} << shift)) | (static_cast<std::uint64_t>(call) << shift);
  }

  /// Keeps, of the states at the same place, those that none of the others is as good as: data that is later by some
  /// time costs at most that much.
  static void prune(std::vector<State>& states) {
    std::sort(states.begin(), states.end(), [](const State& a, const State& b) {
      return std::tie(a.key, a.still, a.left[0], a.left[1], a.parent, a.op.kind) <
             std::tie(b.key, b.still, b.left[0], b.left[1], b.parent, b.op.kind);
    });
    std::size_t kept = 0, group = 0;
    for (std::size_t i = 0; i < states.size(); ++i) {
      if (kept > group && states[group].key != states[i].key) group = kept;
      bool worse = false;
      for (std::size_t k = group; k < kept && !worse; ++k) {
        std::int64_t later = 0;
        for (int c = 0; c < kMostCalls; ++c) later = std::max(later, states[k].left[c] - states[i].left[c]);
        worse = states[k].still + later <= states[i].still;
      }
      if (!worse) states[kept++] = states[i];
    }
    states.resize(kept);
  }

  const OrderTask& task_;
  const std::vector<Stand>& start_;
  std::int64_t limit_;
  std::vector<std::vector<State>> levels_;
  std::vector<std::uint32_t> ends_;  ///< states of the last level that are back where they began
};

/// Every way the other ubatches can stand when ubatch 0 is about to send its dispatch: a period may be cut there, as
/// each ubatch sends one a period.
class Starts {
 public:
  explicit Starts(const OrderTask& task) : task_(task) {
    for (int next = 0; next < kChain; ++next) {
      // Only with several calls under way may one be open while ubatch 0 sends.
      if ((next == 3 || next == 6) && task.in_flight == 1) continue;
      stands_.push_back({next, false});
      if (task.shared && next != 1) stands_.push_back({next, true});
    }
    std::vector<Stand> start(static_cast<std::size_t>(task.ubatches));
    for (const bool shared_done : {false, true}) {
      if (shared_done && !task.shared) continue;
      start[0] = {2, shared_done};
      fill(start, 1);
    }
  }
  const std::vector<std::vector<Stand>>& all() const { return all_; }

 private:
  void fill(std::vector<Stand>& start, std::size_t u) {
    if (u == start.size()) {
      const auto open =
          std::count_if(start.begin(), start.end(), [](const Stand& s) { return s.next == 3 || s.next == 6; });
      if (open < task_.in_flight) all_.push_back(start);
      return;
    }
    for (const Stand& stand : stands_) {
      // Equal ubatches may stand in either's place.
      if (u > 1 && task_.times[u] == task_.times[u - 1] && stand < start[u - 1]) continue;
      start[u] = stand;
      fill(start, u + 1);
    }
  }

  const OrderTask& task_;
  std::vector<Stand> stands_;
  std::vector<std::vector<Stand>> all_;
};

std::int64_t lane_work(const OrderTask& task) {
  std::int64_t work = 0;
  for (int u = 0; u < task.ubatches; ++u)
    for (const OpKind kind : task.chain()) work += task.time(kind, u) + task.node_gap;
  return work;
}

/// The longest a call that is under way at the start can take from there; 0 when there is none.
std::int64_t longest_wire(const OrderTask& task, const std::vector<Stand>& start) {
  std::int64_t longest = 0, all = 0;
  for (int u = 0; u < task.ubatches; ++u) {
    all += task.time(DWire, u) + task.time(CWire, u);
    const int next = start[static_cast<std::size_t>(u)].next;
    if (next == 3 || next == 6) longest = 1;
  }
  // It may have waited for the port behind others.
  return longest == 0 ? 0 : all;
}

/// The largest unit all times of the task are whole multiples of: fewer different times are fewer ranges to look at.
std::int64_t unit_of(const OrderTask& task) {
  std::int64_t unit = task.node_gap;
  for (const auto& times : task.times)
    for (const std::int64_t time : times) unit = std::gcd(unit, time);
  return std::max<std::int64_t>(unit, 1);
}

OrderTask in_units(OrderTask task, std::int64_t unit) {
  task.node_gap /= unit;
  for (auto& times : task.times)
    for (std::int64_t& time : times) time /= unit;
  return task;
}

OrderSearch search(const OrderTask& task, std::int64_t known, const KeepGoing& keep_going) {
  DBO_CHECK(task.ubatches <= 7 && task.in_flight <= kMostCalls, "more ubatches or calls than a state holds");
  OrderSearch out;
  const std::int64_t work = lane_work(task);
  const std::int64_t bound = cycle_bound(task) - work;
  std::int64_t least = known - work;
  std::int64_t unresolved = least;
  LaunchOrder best;
  const Starts starts(task);
  for (const std::vector<Stand>& start : starts.all()) {
    // What is left of the call under way at the cut is part of the question: halve its range until nothing in it helps.
    std::vector<std::pair<std::int64_t, std::int64_t>> ranges{{0, longest_wire(task, start)}};
    while (!ranges.empty() && out.complete && least > bound) {
      const auto [from, to] = ranges.back();
      ranges.pop_back();
      Path path(task, start, from, least);
      out.complete = path.run(keep_going, out.states);
      if (!out.complete || !path.found()) continue;
      LaunchOrder order = path.order(from);
      const std::int64_t still = cycle_time(task, order) - work;
      if (still < least) {
        least = still;
        best = std::move(order);
      }
      // With less left at the start and more allowed at the end than anything in the range.
      const std::int64_t at_least = path.still(to);
      if (from == to || at_least >= least) continue;
      if (to - from < (work + least) / kResolution) {
        unresolved = std::min(unresolved, at_least);
        continue;
      }
      const std::int64_t middle = from + (to - from) / 2;
      ranges.emplace_back(middle + 1, to);
      ranges.emplace_back(from, middle);
    }
    if (!out.complete || least <= bound) break;
  }
  // Stopped early, only the bound is proved; otherwise no order stands still for less than the least found or known.
  out.lower_bound = work + std::max(bound, out.complete ? std::min(least, unresolved) : bound);
  if (!best.empty()) out.orders.push_back(std::move(best));
  return out;
}

}  // namespace

OrderSearch search_one_lane(const OrderTask& task, std::int64_t known, const KeepGoing& keep_going) {
  const std::int64_t unit = unit_of(task);
  OrderSearch out = search(in_units(task, unit), ceil_div(known, unit), keep_going);
  out.lower_bound = std::min(known, out.lower_bound * unit);
  return out;
}

}  // namespace dbo
