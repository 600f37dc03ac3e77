// Every order of a small task, for a judge that only takes whole orders: the engine.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sim/search/order_search.h"
#include "sim/search/order_task.h"

namespace dbo {

/// Orders of one task, a byte an op.
class OrderList {
 public:
  explicit OrderList(std::size_t ops) : ops_(ops) {}

  std::size_t size() const { return codes_.size() / ops_; }
  void add(const LaunchOrder& order);
  LaunchOrder at(std::size_t index) const;

 private:
  std::size_t ops_;
  std::vector<std::uint8_t> codes_;
};

/// All orders that is_order() takes, each once with A0 of ubatch 0 first. Nothing when there are more than `most`, or
/// when `keep_going` ended it.
std::optional<OrderList> all_orders(const OrderTask& task, std::size_t most, const KeepGoing& keep_going);

}  // namespace dbo
