// Orders in notation drawn at random: any interleaving of the ubatches' layers, each ubatch in the order of its data.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "sim/base/hash.h"
#include "sim/sched/notation.h"

namespace dbo::fakes {

/// Numbers in order from one seed.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : seed_(seed) {}
  int below(int bound) { return static_cast<int>(mix_below(seed_, counter_++, static_cast<std::uint64_t>(bound))); }

 private:
  std::uint64_t seed_, counter_ = 0;
};

struct RandomOrder {
  Notation notation;
  int ubatches = 2;
  int most_in_flight = 0;  ///< low latency: calls sent and not received, at the most, in the steady state
};

inline RandomOrder random_order(std::uint64_t seed, bool low_latency, int ubatches) {
  using enum OpKind;
  Draw draw(seed);
  // One layer of an ubatch in a random order that its data allows: S anywhere between A1 and the end.
  std::vector<std::vector<OpKind>> chains;
  for (int u = 0; u < ubatches; ++u) {
    std::vector<OpKind> chain = low_latency ? std::vector<OpKind>{A0, A1, DSend, DRecv, MLP, CSend, CRecv}
                                            : std::vector<OpKind>{A0, A1, D, MLP, C};
    chain.insert(chain.begin() + 2 + draw.below(static_cast<int>(chain.size()) - 1), S);
    // The period may begin anywhere in the layer.
    std::rotate(chain.begin(), chain.begin() + draw.below(static_cast<int>(chain.size())), chain.end());
    chains.push_back(chain);
  }
  RandomOrder out;
  out.ubatches = ubatches;
  std::vector<std::pair<OpKind, int>> order;
  std::vector<std::size_t> at(chains.size(), 0);
  for (;;) {
    std::vector<int> open;
    for (int u = 0; u < ubatches; ++u)
      if (at[static_cast<std::size_t>(u)] < chains[static_cast<std::size_t>(u)].size()) open.push_back(u);
    if (open.empty()) break;
    const int u = open[static_cast<std::size_t>(draw.below(static_cast<int>(open.size())))];
    order.emplace_back(chains[static_cast<std::size_t>(u)][at[static_cast<std::size_t>(u)]++], u);
  }
  for (const auto& [kind, u] : order)
    out.notation.order +=
        (out.notation.order.empty() ? "" : " ") + std::string(op_name(kind)) + "_" + std::to_string(u);
  if (draw.below(3) == 0) {
    // Shared experts may run on the comm lane.
    for (const auto& [kind, u] : order)
      if (kind == S) out.notation.comm += " S_" + std::to_string(u);
  }
  // Two periods: what is sent in the first may be received in the second.
  int open = 0;
  std::vector<std::pair<OpKind, int>> sent;
  for (int period = 0; period < 2; ++period) {
    for (const auto& [kind, u] : order) {
      if (is_send(kind)) {
        sent.emplace_back(kind, u);
        open = static_cast<int>(sent.size());
        out.most_in_flight = std::max(out.most_in_flight, open);
      }
      if (is_recv(kind)) {
        const OpKind send = kind == DRecv ? DSend : CSend;
        const auto found = std::find(sent.begin(), sent.end(), std::pair(send, u));
        if (found != sent.end()) sent.erase(found);
      }
    }
  }
  return out;
}

}  // namespace dbo::fakes
