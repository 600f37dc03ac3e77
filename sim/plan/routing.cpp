#include "sim/plan/routing.h"

#include <algorithm>
#include <numeric>

#include "sim/base/error.h"
#include "sim/base/hash.h"

namespace dbo {
namespace {

/// The row of shares each class has, empty for kinds without a table.
std::vector<std::uint32_t> weights_of(const Routing& routing, int experts, std::size_t row, std::uint64_t key) {
  switch (routing.kind) {
    case RoutingKind::Balanced:
    case RoutingKind::Uniform:
      return std::vector<std::uint32_t>(static_cast<std::size_t>(experts), 1);
    case RoutingKind::Zipf:
      return zipf_weights(experts, routing.alpha, key);
    case RoutingKind::Table: {
      const std::vector<double>& shares = routing.table[std::min(row, routing.table.size() - 1)];
      if (shares.size() != static_cast<std::size_t>(experts))
        throw InputError("a routing table row has " + std::to_string(shares.size()) + " shares for " +
                         std::to_string(experts) + " experts");
      return integer_weights(shares);
    }
  }
  return {};
}

/// Which class each layer has: one for all, or one a MoE layer (dense layers take class 0, which they never use).
std::vector<int> classes_of_layers(const Routing& routing, const ModelShape& shape) {
  const int layers = std::max(shape.layers, 1);
  std::vector<int> out(static_cast<std::size_t>(layers), 0);
  const bool rows = routing.kind == RoutingKind::Table && routing.table.size() > 1;
  if (!rows && !(routing.per_layer && routing.kind != RoutingKind::Table)) return out;
  const auto count = static_cast<int>(routing.table.size());
  if (rows && count != layers && count != shape.moe_layers())
    throw InputError("a routing table has one row, a row a layer or a row a MoE layer, not " + std::to_string(count));
  int moe = 0;
  for (int layer = 0; layer < layers; ++layer) {
    if (!shape.is_moe_layer(layer)) continue;
    out[static_cast<std::size_t>(layer)] = rows && count == layers ? layer : moe;
    ++moe;
  }
  return out;
}

}  // namespace

TokenRange tensor_share(TokenRange tokens, int rank, int tensor_parallel) {
  const std::int64_t part = rank % tensor_parallel, n = tokens.size();
  return {tokens.begin + n * part / tensor_parallel, tokens.begin + n * (part + 1) / tensor_parallel};
}

Router::Router(const Plan& plan)
    : world_(plan.world),
      tensor_parallel_(std::max(plan.tensor_parallel, 1)),
      kind_(plan.routing.kind),
      class_of_layer_(classes_of_layers(plan.routing, plan.shape)) {
  const MoeShape& moe = plan.shape.moe;
  const int experts = moe.routed_experts > 0 ? moe.routed_experts : world_.ranks;
  top_k_ = {std::max(moe.top_k, 1), std::max(moe.groups, 1), std::max(moe.group_top_k, 1)};
  if (kind_ == RoutingKind::Table && plan.routing.table.empty()) throw InputError("a routing table has no row");
  const int count = *std::max_element(class_of_layer_.begin(), class_of_layer_.end()) + 1;
  classes_.resize(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < classes_.size(); ++i) {
    Class& c = classes_[i];
    c.key = mix(mix(plan.routing.seed, 0x726f757465), i);
    std::vector<std::uint32_t> weights = weights_of(plan.routing, experts, i, mix(c.key, 1));
    const bool balanced = kind_ == RoutingKind::Balanced;
    c.placement = place_experts(world_, top_k_.groups, {weights, balanced}, plan.routing.redundant);
    if (balanced) {
      c.blocks = std::make_unique<BalancedBlocks>(c.placement, top_k_);
    } else {
      c.draw = std::make_unique<WeightedDraw>(std::move(weights), top_k_);
    }
  }
  // The vector is complete, so the addresses of the placements that the blocks hold stay as they are.
}

int Router::routing_class(int layer) const {
  return layer < 0 ? 0 : class_of_layer_[static_cast<std::size_t>(layer) % class_of_layer_.size()];
}

std::vector<int> Router::experts_of_token(int rank, int layer, std::int64_t token) const {
  std::vector<int> out(static_cast<std::size_t>(top_k_.k));
  experts_of_tokens(rank, layer, {token, token + 1}, out.data());
  return out;
}

void Router::experts_of_tokens(int rank, int layer, TokenRange tokens, int* out) const {
  const Class& c = classes_[index(layer)];
  const int source = rank / tensor_parallel_;
  if (c.blocks != nullptr) {
    balanced_tokens(c, source, tokens, out);
  } else {
    drawn_tokens(c, source, tokens, out);
  }
}

/// A block of choices is shared by as many sources as it has choices: source s takes choice (j * S + s + j / (C / g))
/// mod C for its j-th token, S sources sharing C choices, g their common divisor. So every source takes each choice of
/// a block once, and the j-th tokens of all sources together take each choice equally often.
void Router::balanced_tokens(const Class& c, int source, TokenRange tokens, int* out) const {
  const std::int64_t choices = c.blocks->tokens();
  const std::int64_t sources = std::max(world_.ranks / tensor_parallel_, 1);
  const std::int64_t group = source / choices, place = source % choices;
  const std::int64_t sharing = std::min(choices, sources - group * choices);
  const std::int64_t run = choices / std::gcd(choices, sharing);
  const auto k = static_cast<std::size_t>(top_k_.k);
  std::vector<int> block;
  std::int64_t block_number = -1;
  for (std::int64_t token = tokens.begin; token < tokens.end; ++token) {
    if (token / choices != block_number) {
      block_number = token / choices;
      block =
          c.blocks->block(mix(mix(c.key, static_cast<std::uint64_t>(block_number)), static_cast<std::uint64_t>(group)));
    }
    const std::int64_t j = token % choices;
    const auto choice = static_cast<std::size_t>((j * sharing + place + j / run) % choices);
    std::copy_n(block.begin() + static_cast<std::ptrdiff_t>(choice * k), k, out);
    out += k;
  }
}

void Router::drawn_tokens(const Class& c, int source, TokenRange tokens, int* out) const {
  const auto sources = static_cast<std::uint64_t>(std::max(world_.ranks / tensor_parallel_, 1));
  for (std::int64_t token = tokens.begin; token < tokens.end; ++token) {
    const std::uint64_t number = static_cast<std::uint64_t>(token) * sources + static_cast<std::uint64_t>(source);
    c.draw->draw(mix(c.key, number), out);
    for (int i = 0; i < top_k_.k; ++i, ++out) {
      // Replicas take turns, so that they share the load evenly.
      const std::vector<int>& copies = c.placement.replicas[static_cast<std::size_t>(*out)];
      *out = copies.size() == 1 ? copies.front() : copies[number % copies.size()];
    }
  }
}

}  // namespace dbo
