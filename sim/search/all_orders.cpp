#include "sim/search/all_orders.h"

#include <algorithm>

#include "sim/base/error.h"

namespace dbo {
namespace {

/// Merges one order of each ubatch into launch orders.
class Merger {
 public:
  Merger(const OrderTask& task, std::size_t most, const KeepGoing& keep_going, OrderList& out)
      : task_(task), most_(most), keep_going_(keep_going), out_(out) {}

  /// False when there are too many, or it was ended.
  bool run(int ubatch, std::vector<std::vector<OpKind>> orders) {
    if (ubatch == task_.ubatches) {
      orders_ = std::move(orders);
      next_.assign(orders_.size(), 0);
      order_.clear();
      return fill();
    }
    for (std::vector<OpKind>& own : ubatch_orders(ubatch > 0)) {
      orders.push_back(std::move(own));
      if (!run(ubatch + 1, orders)) return false;
      orders.pop_back();
    }
    return true;
  }

 private:
  /// The orders that data allows an ubatch within a period: the chain cut anywhere, the shared expert anywhere behind
  /// A1 and before the next A0.
  std::vector<std::vector<OpKind>> ubatch_orders(bool any_cut) const {
    std::vector<OpKind> chain = task_.chain();
    if (task_.shared) chain.pop_back();
    std::vector<std::vector<OpKind>> out;
    for (std::size_t s = 2; s <= chain.size(); ++s) {
      std::vector<OpKind> own = chain;
      if (task_.shared) own.insert(own.begin() + static_cast<std::ptrdiff_t>(s), OpKind::S);
      for (std::size_t cut = 0; cut < (any_cut ? own.size() : 1); ++cut) {
        out.push_back(own);
        std::rotate(out.back().begin(), out.back().begin() + static_cast<std::ptrdiff_t>(cut), out.back().end());
      }
      if (!task_.shared) break;
    }
    return out;
  }

  bool fill() {
    bool any = false;
    for (std::size_t u = 0; u < orders_.size(); ++u) {
      if (next_[u] == orders_[u].size() || (u > 0 && next_[0] == 0)) continue;
      any = true;
      order_.push_back({orders_[u][next_[u]++], static_cast<int>(u)});
      const bool going = too_many_calls() || fill();
      --next_[u];
      order_.pop_back();
      if (!going) return false;
    }
    if (any || !is_order(task_, order_)) return true;
    out_.add(order_);
    return out_.size() <= most_ && ((out_.size() & 0xfff) != 0 || keep_going_());
  }

  /// Of the calls sent since the period began, more than may be un-received: no end of the order mends that.
  bool too_many_calls() const {
    if (!task_.low_latency || !is_send(order_.back().kind)) return false;
    int open = 0;
    for (std::size_t i = 0; i < order_.size(); ++i) {
      if (!is_send(order_[i].kind)) continue;
      const OrderOp recv{is_dispatch(order_[i].kind) ? OpKind::DRecv : OpKind::CRecv, order_[i].ubatch};
      if (std::find(order_.begin() + static_cast<std::ptrdiff_t>(i), order_.end(), recv) == order_.end()) ++open;
    }
    return open > task_.in_flight;
  }

  const OrderTask& task_;
  std::size_t most_;
  const KeepGoing& keep_going_;
  OrderList& out_;
  std::vector<std::vector<OpKind>> orders_;
  std::vector<std::size_t> next_;
  LaunchOrder order_;
};

}  // namespace

void OrderList::add(const LaunchOrder& order) {
  DBO_CHECK(order.size() == ops_, "orders of one task are equally long");
  for (const OrderOp& op : order) {
    DBO_CHECK(op.ubatch < 8, "an order of at most 8 ubatches");
    codes_.push_back(
        static_cast<std::uint8_t>(static_cast<unsigned>(op.kind) << 3U | static_cast<unsigned>(op.ubatch)));
  }
}

LaunchOrder OrderList::at(std::size_t index) const {
  LaunchOrder order;
  for (std::size_t i = index * ops_; i < (index + 1) * ops_; ++i)
    order.push_back({static_cast<OpKind>(codes_[i] >> 3U), codes_[i] & 7});
  return order;
}

std::optional<OrderList> all_orders(const OrderTask& task, std::size_t most, const KeepGoing& keep_going) {
  static_assert(kOpKinds <= 32);
  // Three have millions.
  constexpr int kMostUbatches = 2;
  if (task.ubatches > kMostUbatches) return std::nullopt;
  OrderList out(task.chain().size() * static_cast<std::size_t>(task.ubatches));
  if (!Merger(task, most, keep_going, out).run(0, {})) return std::nullopt;
  return out;
}

}  // namespace dbo
