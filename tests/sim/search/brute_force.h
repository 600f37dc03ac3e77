// All orders of a small task, one after the other.
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "sim/search/order_task.h"

namespace dbo::test {

/// One ubatch's ops in every order its data allows within a period: any cut of the chain, the shared expert anywhere
/// behind A1 and before the next A0.
inline std::vector<std::vector<OpKind>> ubatch_orders(const OrderTask& task, bool any_cut) {
  std::vector<OpKind> chain = task.chain();
  if (task.shared) chain.pop_back();
  std::vector<std::vector<OpKind>> out;
  for (std::size_t s = 2; s <= chain.size(); ++s) {
    std::vector<OpKind> order = chain;
    if (task.shared) order.insert(order.begin() + static_cast<std::ptrdiff_t>(s), OpKind::S);
    for (std::size_t cut = 0; cut < (any_cut ? order.size() : 1); ++cut) {
      std::vector<OpKind> rotated = order;
      std::rotate(rotated.begin(), rotated.begin() + static_cast<std::ptrdiff_t>(cut), rotated.end());
      out.push_back(rotated);
    }
    if (!task.shared) break;
  }
  return out;
}

/// Whether at most `in_flight` calls are un-received, each received before the one `in_flight` after it is sent.
inline bool keeps_in_flight(const LaunchOrder& order, int in_flight) {
  // Three periods: the calls of the middle one are in their steady place.
  std::vector<std::pair<OpKind, int>> sent;
  std::vector<bool> received;
  for (int period = 0; period < 3; ++period) {
    for (const OrderOp& op : order) {
      if (is_send(op.kind)) {
        if (sent.size() >= static_cast<std::size_t>(in_flight) &&
            !received[sent.size() - static_cast<std::size_t>(in_flight)])
          return false;
        sent.emplace_back(op.kind, op.ubatch);
        received.push_back(false);
      } else if (is_recv(op.kind)) {
        const std::pair send(op.kind == OpKind::DRecv ? OpKind::DSend : OpKind::CSend, op.ubatch);
        for (std::size_t i = 0; i < sent.size(); ++i)
          if (sent[i] == send && !received[i]) {
            received[i] = true;
            break;
          }
      }
    }
  }
  return true;
}

/// Calls `visit` with every order of two ubatches, A0 of ubatch 0 first.
inline void for_every_order(const OrderTask& task, const std::function<void(const LaunchOrder&)>& visit) {
  for (const std::vector<OpKind>& first : ubatch_orders(task, false)) {
    for (const std::vector<OpKind>& second : ubatch_orders(task, true)) {
      LaunchOrder order;
      const std::function<void(std::size_t, std::size_t)> fill = [&](std::size_t a, std::size_t b) {
        if (a == first.size() && b == second.size()) {
          if (!task.low_latency || keeps_in_flight(order, task.in_flight)) visit(order);
          return;
        }
        if (a < first.size()) {
          order.push_back({first[a], 0});
          fill(a + 1, b);
          order.pop_back();
        }
        if (b < second.size() && a > 0) {
          order.push_back({second[b], 1});
          fill(a, b + 1);
          order.pop_back();
        }
      };
      fill(0, 0);
    }
  }
}

}  // namespace dbo::test
