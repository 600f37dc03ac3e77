// High throughput: two lanes, so that orders of both must fit. For one cycle time after the other: is there an order?
// Each pair of ops of a lane is a choice of how many periods one comes before the other; longest paths between all ops
// rule choices out, and what remains is tried.
#include <algorithm>

#include "sim/base/error.h"
#include "sim/search/order_search.h"

namespace dbo {
namespace {

using enum OpKind;

constexpr std::int64_t kFar = INT64_MIN / 4;  ///< no path
constexpr std::int64_t kScale = 64;           ///< more periods than any circle of distinct ops spans

/// `a / b` rounded down and up, for b > 0.
std::int64_t floor_of(std::int64_t a, std::int64_t b) {
  return a >= 0 ? a / b : -ceil_div(-a, b);
}
std::int64_t ceil_of(std::int64_t a, std::int64_t b) {
  return a >= 0 ? ceil_div(a, b) : -(-a / b);
}

/// The least difference between the ends of two ops in any schedule that keeps all arcs so far; ends[j] - ends[i].
class Distances {
 public:
  explicit Distances(std::size_t nodes) : n_(nodes), least_(nodes * nodes, kFar) {
    for (std::size_t i = 0; i < n_; ++i) least_[i * n_ + i] = 0;
  }
  std::int64_t at(std::size_t i, std::size_t j) const { return least_[i * n_ + j]; }

  /// Op j ends at least `weight` after op i. False when that closes a circle that takes time.
  bool add(std::size_t i, std::size_t j, std::int64_t weight) {
    if (weight <= at(i, j)) return true;
    if (at(j, i) > kFar && weight + at(j, i) > 0) return false;
    for (std::size_t a = 0; a < n_; ++a) {
      if (at(a, i) == kFar) continue;
      const std::int64_t to_j = at(a, i) + weight;
      if (to_j <= at(a, j)) continue;
      for (std::size_t b = 0; b < n_; ++b)
        if (at(j, b) > kFar) least_[a * n_ + b] = std::max(least_[a * n_ + b], to_j + at(j, b));
    }
    return true;
  }

 private:
  std::size_t n_;
  std::vector<std::int64_t> least_;
};

/// Two ops of one lane. `j` runs `periods` periods after `i` at the least: at choice K, an execution of j comes behind
/// the execution of i that is K periods earlier, and the one before that j is before it.
struct Pair {
  std::size_t i = 0, j = 0;
};

struct Choices {
  std::int64_t low = 0, high = 0;
};

class TwoLanes {
 public:
  TwoLanes(const OrderTask& task, const KeepGoing& keep_going, std::int64_t& states)
      : task_(task), keep_going_(keep_going), states_(states) {
    for (int u = 0; u < task.ubatches; ++u) {
      first_.push_back(ops_.size());
      for (const OpKind kind : task.chain()) ops_.push_back({kind, u});
    }
    for (std::size_t i = 0; i < ops_.size(); ++i)
      for (std::size_t j = i + 1; j < ops_.size(); ++j)
        if (is_collective(ops_[i].kind) == is_collective(ops_[j].kind)) pairs_.push_back({i, j});
  }

  /// Whether an order has a cycle of at most `cycle`: some of them, up to `most`. `complete` turns false when stopped.
  std::vector<LaunchOrder> solve(std::int64_t cycle, std::size_t most, bool& complete) {
    cycle_ = cycle;
    length_of_cycle_ = scaled(cycle) + static_cast<std::int64_t>(ops_.size());
    most_ = most;
    stopped_ = false;
    found_.clear();
    Distances start(ops_.size());
    if (add_data(start)) branch(start, pairs_);
    complete = !stopped_;
    return std::move(found_);
  }

 private:
  /// Times are scaled and each op is given one unit more, each period as many as there are ops: a circle of ops that
  /// take no time within one period is then ruled out, and no circle of a whole period and more gains or loses by it.
  std::int64_t scaled(std::int64_t ns) const { return ns * kScale * static_cast<std::int64_t>(ops_.size()); }
  std::int64_t length(std::size_t op) const {
    return scaled(task_.time(ops_[op].kind, ops_[op].ubatch) + task_.node_gap) + 1;
  }
  std::size_t at(OpKind kind, int ubatch) const {
    const std::size_t first = first_[static_cast<std::size_t>(ubatch)];
    for (std::size_t op = first;; ++op)
      if (ops_[op].kind == kind) return op;
  }

  bool add_data(Distances& distances) const {
    for (int u = 0; u < task_.ubatches; ++u) {
      const auto need = [&](OpKind from, OpKind to, int layers) {
        const std::size_t a = at(from, u), b = at(to, u);
        const std::int64_t gap = is_collective(from) == is_collective(to) ? 0 : scaled(task_.lane_gap);
        return distances.add(a, b, gap + length(b) - layers * length_of_cycle_);
      };
      if (!need(A0, A1, 0) || !need(A1, D, 0) || !need(D, MLP, 0) || !need(MLP, C, 0) || !need(C, A0, 1)) return false;
      if (task_.shared && (!need(A1, S, 0) || !need(S, A0, 1))) return false;
      if (u == 0) continue;
      // Moved by whole periods a schedule stays one: let each ubatch begin its layer within a period of ubatch 0, and
      // equal ubatches in their order.
      const std::size_t lead = at(A0, 0), own = at(A0, u);
      if (!distances.add(lead, own, 0) || !distances.add(own, lead, 1 - length_of_cycle_)) return false;
      if (u > 1 && task_.times[static_cast<std::size_t>(u)] == task_.times[static_cast<std::size_t>(u) - 1] &&
          !distances.add(at(A0, u - 1), own, 0))
        return false;
    }
    return true;
  }

  /// i, then j: the ends differ by at least j's time less K periods, and the other way round for the next i.
  Choices choices(const Distances& d, const Pair& pair) const {
    Choices out{INT64_MIN, INT64_MAX};
    if (d.at(pair.j, pair.i) > kFar) out.low = ceil_of(length(pair.j) + d.at(pair.j, pair.i), length_of_cycle_);
    if (d.at(pair.i, pair.j) > kFar) out.high = 1 - ceil_of(length(pair.i) + d.at(pair.i, pair.j), length_of_cycle_);
    return out;
  }

  bool choose(Distances& d, const Pair& pair, std::int64_t k) const {
    return d.add(pair.i, pair.j, length(pair.j) - k * length_of_cycle_) &&
           d.add(pair.j, pair.i, length(pair.i) - (1 - k) * length_of_cycle_);
  }

  /// Makes every choice that is the only one left. False when there is none for some pair.
  bool settle(Distances& d, std::vector<Pair>& open) const {
    for (bool changed = true; changed;) {
      changed = false;
      std::size_t kept = 0;
      for (std::size_t p = 0; p < open.size(); ++p) {
        const Choices c = choices(d, open[p]);
        if (c.low > c.high) return false;
        if (c.low < c.high) {
          open[kept++] = open[p];
          continue;
        }
        if (!choose(d, open[p], c.low)) return false;
        changed = true;
      }
      open.resize(kept);
    }
    return true;
  }

  void branch(Distances d, std::vector<Pair> open) {
    if ((++states_ & 0x3f) == 0 && !keep_going_()) stopped_ = true;
    if (stopped_ || found_.size() >= most_ || !settle(d, open)) return;
    if (open.empty()) {
      take(d);
      return;
    }
    // The pair with the fewest choices, of these the one that costs most.
    std::size_t pick = 0;
    std::pair<std::int64_t, std::int64_t> best{INT64_MAX, 0};
    for (std::size_t p = 0; p < open.size(); ++p) {
      const Choices c = choices(d, open[p]);
      const std::pair<std::int64_t, std::int64_t> rank{c.high - c.low, -(length(open[p].i) + length(open[p].j))};
      if (rank < best) {
        best = rank;
        pick = p;
      }
    }
    const Pair pair = open[pick];
    open.erase(open.begin() + static_cast<std::ptrdiff_t>(pick));
    // First the choice that leaves most room.
    const Choices c = choices(d, pair);
    std::vector<std::pair<std::int64_t, std::int64_t>> tries;
    for (std::int64_t k = c.low; k <= c.high; ++k) {
      const std::int64_t there = length(pair.j) - k * length_of_cycle_ - d.at(pair.i, pair.j);
      const std::int64_t back = length(pair.i) - (1 - k) * length_of_cycle_ - d.at(pair.j, pair.i);
      tries.emplace_back(std::max<std::int64_t>(there, 0) + std::max<std::int64_t>(back, 0), k);
    }
    std::sort(tries.begin(), tries.end());
    for (const auto& [cost, k] : tries) {
      Distances next = d;
      if (choose(next, pair, k)) branch(std::move(next), open);
    }
  }

  /// The host order of a solution: the starts of one period by time. Every op takes time here, so what one needs starts
  /// before it.
  void take(const Distances& d) {
    const std::size_t lead = at(A0, 0);
    std::vector<std::pair<std::int64_t, std::size_t>> starts;
    for (std::size_t i = 0; i < ops_.size(); ++i) {
      const std::int64_t start = d.at(lead, i) - length(i);
      starts.emplace_back(start - floor_of(start, length_of_cycle_) * length_of_cycle_, i);
    }
    std::sort(starts.begin(), starts.end());
    LaunchOrder order;
    for (const auto& [start, i] : starts) order.push_back(ops_[i]);
    DBO_CHECK(cycle_time(task_, order) <= cycle_, "an order is slower than its solution");
    if (std::find(found_.begin(), found_.end(), order) == found_.end()) found_.push_back(std::move(order));
  }

  const OrderTask& task_;
  const KeepGoing& keep_going_;
  std::int64_t& states_;
  std::vector<OrderOp> ops_;
  std::vector<std::size_t> first_;  ///< by ubatch
  std::vector<Pair> pairs_;
  std::int64_t cycle_ = 1, length_of_cycle_ = 1;  ///< in ns; scaled
  std::size_t most_ = 1;
  bool stopped_ = false;
  std::vector<LaunchOrder> found_;
};

}  // namespace

OrderSearch search_two_lanes(const OrderTask& task, std::int64_t known, std::size_t most, const KeepGoing& keep_going) {
  OrderSearch out;
  TwoLanes lanes(task, keep_going, out.states);
  // No order has a cycle of `none` or less; one of `some` is known.
  std::int64_t none = cycle_bound(task) - 1, some = known;
  std::int64_t next = none + 1;
  while (none + 1 < some || (out.orders.empty() && none < some)) {
    std::vector<LaunchOrder> orders = lanes.solve(next, 1, out.complete);
    if (!orders.empty()) {
      some = cycle_time(task, orders.front());
      out.orders = std::move(orders);
    } else if (out.complete) {
      none = next;
    } else {
      break;
    }
    if (none + 1 >= some) break;
    next = none + (some - none) / 2;
  }
  out.lower_bound = none + 1;
  if (out.complete && most > 1) {
    // Others as good: they may differ in what this search leaves out.
    bool complete = true;
    for (LaunchOrder& order : lanes.solve(none + 1, most, complete))
      if (std::find(out.orders.begin(), out.orders.end(), order) == out.orders.end())
        out.orders.push_back(std::move(order));
  }
  return out;
}

}  // namespace dbo
