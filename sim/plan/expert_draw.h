// How a token picks its experts: equal counts by rule, or drawn by weight. Counter-based, so that any token's choice
// can be asked for without those before it, and integer throughout, so that it is the same on every machine.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "sim/plan/expert_placement.h"

namespace dbo {

/// How many experts a token picks, and inside how many groups.
struct TopK {
  int k = 1;
  int groups = 1;
  int group_top_k = 1;
};

/// Balanced routing: a block of `tokens()` choices in which every physical expert occurs equally often. Shuffled copies
/// of each group's experts are dealt out to the choices, a choice taking from the `group_top_k` groups with most left;
/// no choice has two copies of one logical expert.
class BalancedBlocks {
 public:
  BalancedBlocks(const ExpertPlacement& placement, TopK top_k);

  int tokens() const { return tokens_; }
  /// [tokens()][k] physical experts of the block that `key` names.
  std::vector<int> block(std::uint64_t key) const;

 private:
  std::vector<std::vector<int>> decks(std::uint64_t key) const;
  /// Both say whether every choice kept to its groups and no count had to give.
  bool deal_block(std::uint64_t key, std::vector<int>& out) const;
  bool deal(std::vector<std::vector<int>>& decks, std::uint64_t key, int token, std::vector<int>& out) const;

  const ExpertPlacement* placement_;
  TopK top_k_;
  int tokens_ = 1;   ///< choices a block
  int repeats_ = 1;  ///< times each physical expert occurs in it
  std::vector<std::vector<int>> group_experts_;
};

/// Routing by weight: groups are drawn without replacement in proportion to their weight, then experts inside them
/// likewise.
class WeightedDraw {
 public:
  WeightedDraw(std::vector<std::uint32_t> weights, TopK top_k);

  /// Writes the k distinct logical experts of the token that `key` names.
  void draw(std::uint64_t key, int* out) const;

 private:
  std::size_t find(std::uint64_t target) const;
  static constexpr std::size_t kMaxGroups = 64;
  using GroupList = std::array<int, kMaxGroups>;
  int pick_groups(std::uint64_t key, GroupList& groups) const;
  template <std::size_t kCount>
  std::uint64_t picked_groups(std::uint64_t key) const;

  TopK top_k_;
  int group_size_ = 1;
  std::array<std::uint64_t, kMaxGroups> group_weight_{}, group_sums_{};
  std::vector<std::uint64_t> cumulative_;  ///< [experts + 1]
  std::vector<std::uint32_t> guide_;       ///< for each part of the weight, the first expert that reaches into it
  int guide_shift_ = 0;
};

/// Weights below 2^24 in proportion to `shares` (finite, none negative, not all 0).
std::vector<std::uint32_t> integer_weights(const std::vector<double>& shares);

/// Weights of a Zipf distribution, 1 / rank^alpha, given to the experts in an order shuffled by `key`.
std::vector<std::uint32_t> zipf_weights(int experts, double alpha, std::uint64_t key);

}  // namespace dbo
