#include "sim/plan/expert_draw.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "sim/base/error.h"
#include "sim/base/hash.h"

namespace dbo {
namespace {

template <typename T>
void shuffle(std::vector<T>& items, std::uint64_t key) {
  for (std::size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[mix_below(key, i, i)]);
}

/// Natural logarithm and exponential from the four exact operations alone: libm's last bit differs between versions.
double natural_log(double x) {
  int halvings = 0;
  for (; x > 1.5; x /= 2) ++halvings;
  const double y = (x - 1) / (x + 1), square = y * y;
  double sum = 0, term = y;
  for (int n = 1; n < 60; n += 2, term *= square) sum += term / n;
  return 2 * sum + halvings * 0.69314718055994530942;
}

double exponential(double x) {
  int halvings = 0;
  for (; x < -0.5; x /= 2) ++halvings;
  double sum = 1, term = 1;
  for (int n = 1; n < 20; ++n) {
    term *= x / n;
    sum += term;
  }
  for (; halvings > 0; --halvings) sum *= sum;
  return sum;
}

constexpr std::uint32_t kWeightScale = (1U << 24) - 1;

}  // namespace

BalancedBlocks::BalancedBlocks(const ExpertPlacement& placement, TopK top_k) : placement_(&placement), top_k_(top_k) {
  const int physical = placement.physical();
  const int common = std::gcd(physical, top_k.k);
  tokens_ = physical / common;
  repeats_ = top_k.k / common;
  const int group_size = static_cast<int>(placement.replicas.size()) / top_k.groups;
  group_experts_.resize(static_cast<std::size_t>(top_k.groups));
  for (int p = 0; p < physical; ++p)
    group_experts_[static_cast<std::size_t>(placement.logical[static_cast<std::size_t>(p)] / group_size)].push_back(p);
}

std::vector<std::vector<int>> BalancedBlocks::decks(std::uint64_t key) const {
  std::vector<std::vector<int>> decks(group_experts_.size());
  for (std::size_t g = 0; g < decks.size(); ++g) {
    for (int repeat = 0; repeat < repeats_; ++repeat) {
      std::vector<int> deck = group_experts_[g];
      shuffle(deck, mix(key, g * static_cast<std::size_t>(repeats_) + static_cast<std::size_t>(repeat)));
      decks[g].insert(decks[g].end(), deck.begin(), deck.end());
    }
    // Dealt from the back, so that taking a card is cheap.
    std::reverse(decks[g].begin(), decks[g].end());
  }
  return decks;
}

bool BalancedBlocks::deal(std::vector<std::vector<int>>& decks, std::uint64_t key, int token,
                          std::vector<int>& out) const {
  const auto logical = [&](int p) { return placement_->logical[static_cast<std::size_t>(p)]; };
  const std::size_t first = out.size(), wanted = first + static_cast<std::size_t>(top_k_.k);
  const auto clashes = [&](int p) {
    return std::any_of(out.begin() + static_cast<std::ptrdiff_t>(first), out.end(),
                       [&](int q) { return logical(p) == logical(q); });
  };
  // Takes the top card of the deck that clashes with none the token has.
  const auto take = [&](std::vector<int>& deck) {
    for (std::size_t i = deck.size(); i > 0; --i) {
      if (clashes(deck[i - 1])) continue;
      out.push_back(deck[i - 1]);
      deck.erase(deck.begin() + static_cast<std::ptrdiff_t>(i) - 1);
      return true;
    }
    return false;
  };
  std::vector<std::size_t> order(decks.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  shuffle(order, mix(key, 0x10000 + static_cast<std::uint64_t>(token)));
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return decks[a].size() > decks[b].size(); });
  const auto groups = static_cast<std::size_t>(top_k_.group_top_k);
  for (std::size_t i = 0; i < groups; ++i) {
    const std::size_t share = (static_cast<std::size_t>(top_k_.k) + groups - 1 - i) / groups;
    for (std::size_t n = 0; n < share && take(decks[order[i]]); ++n) continue;
  }
  for (std::size_t i = 0; i < groups; ++i)
    while (out.size() < wanted && take(decks[order[i]])) continue;
  const bool clean = out.size() == wanted;
  for (const std::size_t g : order)
    while (out.size() < wanted && take(decks[g])) continue;
  return clean && out.size() == wanted;
}

std::vector<int> BalancedBlocks::block(std::uint64_t key) const {
  // What the last choices find left may be copies of experts they have, or lie in other groups. Other shuffles do
  // better; where none does (groups of unequal size), the last one stands.
  constexpr std::uint64_t kShuffles = 16;
  std::vector<int> out;
  for (std::uint64_t attempt = 0; attempt < kShuffles; ++attempt)
    if (deal_block(mix(key, attempt), out)) break;
  return out;
}

bool BalancedBlocks::deal_block(std::uint64_t key, std::vector<int>& out) const {
  std::vector<std::vector<int>> left = decks(key);
  const auto k = static_cast<std::size_t>(top_k_.k);
  out.clear();
  out.reserve(static_cast<std::size_t>(tokens_) * k);
  bool clean = true;
  for (int token = 0; token < tokens_; ++token) {
    clean = deal(left, key, token, out) && clean;
    // Only copies of experts the token already has are left: take others, at the price of exactly equal counts.
    for (int e = 0; out.size() < static_cast<std::size_t>(token + 1) * k; ++e) {
      const std::vector<int>& copies = placement_->replicas[static_cast<std::size_t>(e)];
      const auto begin = out.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(token) * k);
      const bool has =
          std::any_of(begin, out.end(), [&](int p) { return placement_->logical[static_cast<std::size_t>(p)] == e; });
      if (!has) out.push_back(copies[static_cast<std::size_t>(token) % copies.size()]);
    }
  }
  return clean;
}

WeightedDraw::WeightedDraw(std::vector<std::uint32_t> weights, TopK top_k)
    : top_k_(top_k), group_size_(static_cast<int>(weights.size()) / top_k.groups) {
  if (static_cast<std::size_t>(top_k.groups) > kMaxGroups)
    throw InputError("routing knows at most " + std::to_string(kMaxGroups) + " expert groups");
  cumulative_.reserve(weights.size() + 1);
  cumulative_.push_back(0);
  for (const std::uint32_t weight : weights) cumulative_.push_back(cumulative_.back() + weight);
  const std::uint64_t total = cumulative_.back();
  const auto size = static_cast<std::size_t>(group_size_);
  for (std::size_t g = 0; g < static_cast<std::size_t>(top_k.groups); ++g) {
    group_weight_[g] = cumulative_[(g + 1) * size] - cumulative_[g * size];
    group_sums_[g] = cumulative_[(g + 1) * size];
  }
  while ((total >> guide_shift_) > 8 * weights.size()) ++guide_shift_;
  std::uint32_t expert = 0;
  for (std::uint64_t part = 0; part <= total >> guide_shift_; ++part) {
    while (expert + 1U < weights.size() && cumulative_[expert + 1U] <= part << guide_shift_) ++expert;
    guide_.push_back(expert);
  }
}

std::size_t WeightedDraw::find(std::uint64_t target) const {
  std::size_t expert = guide_[target >> guide_shift_];
  while (cumulative_[expert + 1] <= target) ++expert;
  return expert;
}

/// `kCount` groups where that many are known when compiled, which is twice as fast; 0: any number.
template <std::size_t kCount>
std::uint64_t WeightedDraw::picked_groups(std::uint64_t key) const {
  const std::size_t count = kCount > 0 ? kCount : static_cast<std::size_t>(top_k_.groups);
  constexpr std::size_t kRoom = kCount == 0 ? kMaxGroups : kCount;
  std::array<std::uint64_t, kRoom> sums;  // of the weights from the front on
  std::copy_n(group_sums_.begin(), count, sums.begin());
  std::uint64_t picked = 0;
  for (int n = 0; n < top_k_.group_top_k; ++n) {
    std::size_t g = 0;
    if (const std::uint64_t total = sums[count - 1]; total > 0) {
      // Without branches, as none could be foreseen.
      const std::uint64_t target = mix_below(key, 0x20000 + static_cast<std::uint64_t>(n), total);
      for (std::size_t i = 0; i < count; ++i) g += sums[i] <= target ? 1 : 0;
      for (std::size_t i = 0; i < count; ++i) sums[i] -= i >= g ? group_weight_[g] : 0;
    } else {
      while ((picked >> g & 1) != 0) ++g;  // only groups without weight are left
    }
    picked |= std::uint64_t{1} << g;
  }
  return picked;
}

int WeightedDraw::pick_groups(std::uint64_t key, GroupList& groups) const {
  std::uint64_t picked = top_k_.groups == 8 ? picked_groups<8>(key) : picked_groups<0>(key);
  int found = 0;
  for (; picked != 0; picked &= picked - 1) groups[static_cast<std::size_t>(found++)] = std::countr_zero(picked);
  return found;
}

void WeightedDraw::draw(std::uint64_t key, int* out) const {
  const auto size = static_cast<std::size_t>(group_size_);
  GroupList groups;
  groups[0] = 0;
  const int picked = top_k_.groups > 1 ? pick_groups(key, groups) : 1;
  const auto group = [&](int i) { return static_cast<std::size_t>(groups[static_cast<std::size_t>(i)]); };
  std::array<std::uint64_t, kMaxGroups> sums;
  std::uint64_t total = 0;
  for (int i = 0; i < picked; ++i) sums[static_cast<std::size_t>(i)] = total += group_weight_[group(i)];
  int found = 0;
  const auto add = [&](int expert) {
    if (std::find(out, out + found, expert) == out + found) out[found++] = expert;
  };
  // Drawing again on a repeat is drawing without replacement; heavy skew may need many tries, then the rest is filled.
  constexpr std::uint64_t kTries = 200;
  for (std::uint64_t n = 0; found < top_k_.k && n < kTries && total > 0; ++n) {
    const std::uint64_t target = mix_below(key, n, total);
    int i = 0;
    for (int before = 0; before + 1 < picked; ++before) i += sums[static_cast<std::size_t>(before)] <= target ? 1 : 0;
    const std::uint64_t inside = target - (sums[static_cast<std::size_t>(i)] - group_weight_[group(i)]);
    add(static_cast<int>(find(cumulative_[group(i) * size] + inside)));
  }
  for (int i = 0; i < picked && found < top_k_.k; ++i)
    for (int e = 0; e < group_size_ && found < top_k_.k; ++e) add(static_cast<int>(group(i) * size) + e);
}

std::vector<std::uint32_t> integer_weights(const std::vector<double>& shares) {
  const double largest = *std::max_element(shares.begin(), shares.end());
  DBO_CHECK(largest > 0, "some expert has a share");
  std::vector<std::uint32_t> weights;
  weights.reserve(shares.size());
  for (const double share : shares) weights.push_back(static_cast<std::uint32_t>(share / largest * kWeightScale + 0.5));
  return weights;
}

std::vector<std::uint32_t> zipf_weights(int experts, double alpha, std::uint64_t key) {
  std::vector<double> shares;
  for (int i = 1; i <= experts; ++i) shares.push_back(exponential(-alpha * natural_log(i)));
  std::vector<std::uint32_t> weights = integer_weights(shares);
  shuffle(weights, key);
  return weights;
}

}  // namespace dbo
