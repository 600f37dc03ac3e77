// Counts of one dispatch: in closed form for balanced routing, token by token for the other kinds.
#include <algorithm>
#include <bit>
#include <optional>
#include <type_traits>

#include "sim/base/error.h"
#include "sim/plan/routing.h"

namespace dbo {
namespace {

/// Chance that `picked` different ones of `all` miss `held` given ones: C(all - held, picked) / C(all, picked).
double miss_chance(int all, int held, int picked) {
  double chance = 1;
  for (int i = 0; i < picked; ++i) chance *= static_cast<double>(std::max(all - held - i, 0)) / (all - i);
  return chance;
}

/// Chance that a token picks one of the physical experts that hold `held` [groups] of the `all` [groups] in each group:
/// every set of `group_top_k` groups equally likely, its picks spread evenly over them, so one less the mean over the
/// sets of the product of the groups' misses.
double hit_chance(const std::vector<int>& all, const std::vector<int>& held, TopK top_k) {
  const int low = top_k.k / top_k.group_top_k, extra = top_k.k % top_k.group_top_k;
  const double share = static_cast<double>(extra) / top_k.group_top_k;
  // symmetric[n]: sum over the sets of n groups of the product of their misses.
  std::vector<double> symmetric(static_cast<std::size_t>(top_k.group_top_k) + 1, 0);
  symmetric[0] = 1;
  for (std::size_t g = 0; g < all.size(); ++g) {
    const double miss = (1 - share) * miss_chance(all[g], held[g], low) +
                        (extra > 0 ? share * miss_chance(all[g], held[g], low + 1) : 0);
    for (std::size_t n = symmetric.size() - 1; n > 0; --n) symmetric[n] += symmetric[n - 1] * miss;
  }
  double sets = 1;
  for (int i = 0; i < top_k.group_top_k; ++i) sets = sets * (top_k.groups - i) / (i + 1);
  return 1 - symmetric.back() / sets;
}

/// Mean over runs of `width` ranks of the chance that a token needs the run.
double mean_hit(const ExpertPlacement& placement, TopK top_k, int ranks, int width) {
  const auto groups = static_cast<std::size_t>(top_k.groups);
  const int group_size = static_cast<int>(placement.replicas.size()) / top_k.groups;
  const auto group_of = [&](int p) {
    return static_cast<std::size_t>(placement.logical[static_cast<std::size_t>(p)] / group_size);
  };
  std::vector<int> all(groups, 0);
  for (int p = 0; p < placement.physical(); ++p) ++all[group_of(p)];
  double sum = 0;
  int runs = 0;
  std::vector<int> held(groups), last;
  double last_chance = 0;
  for (int first = 0; first < ranks; first += width, ++runs) {
    std::fill(held.begin(), held.end(), 0);
    const int end = std::min(first + width, ranks) * placement.slots;
    for (int p = first * placement.slots; p < end; ++p) ++held[group_of(p)];
    if (held != last) {  // neighbours often hold alike
      last_chance = hit_chance(all, held, top_k);
      last = held;
    }
    sum += last_chance;
  }
  return sum / runs;
}

/// The rank at `source`'s place in the domain of `rank`: two-level exchanges enter the domain there. The last domain
/// may be short; then the place wraps inside it.
int gate_of(int source, int rank, int domain, int ranks) {
  const int first = rank / domain * domain;
  return first + source % domain % std::min(domain, ranks - first);
}

PairTraffic& pair_of(RoutedLoad& load, int from, int to) {
  return load.pairs[static_cast<std::size_t>(from) * load.ranks.size() + static_cast<std::size_t>(to)];
}

/// What is counted at a rank, in the order of `kFields`.
enum Field : std::size_t {
  CopiesSelf,
  CopiesOutNear,
  CopiesOutFar,
  CopiesInNear,
  CopiesInFar,
  RanksSelf,
  RanksOutNear,
  RanksOutFar,
  RanksInNear,
  RanksInFar,
  RailOut,
  RailIn,
  ForwardOut,
  ForwardIn,
  FieldCount
};
constexpr double RankTraffic::*kFields[FieldCount] = {
    &RankTraffic::copies_self,    &RankTraffic::copies_out_near, &RankTraffic::copies_out_far,
    &RankTraffic::copies_in_near, &RankTraffic::copies_in_far,   &RankTraffic::ranks_self,
    &RankTraffic::ranks_out_near, &RankTraffic::ranks_out_far,   &RankTraffic::ranks_in_near,
    &RankTraffic::ranks_in_far,   &RankTraffic::rail_out,        &RankTraffic::rail_in,
    &RankTraffic::forward_out,    &RankTraffic::forward_in};

/// Counts of the physical experts' rows, then of every rank's fields.
std::size_t counts_size(const ExpertPlacement& placement, std::size_t ranks) {
  return static_cast<std::size_t>(placement.physical()) + ranks * FieldCount;
}

/// Counts the tokens of one rank after the other: rows of experts, tokens that need a rank, tokens that need a far
/// domain. Everything a load says follows from these, so a token costs only its experts.
class Counter {
 public:
  Counter(const ExpertPlacement& placement, int ranks, int domain)
      : domain_(domain),
        first_field_(static_cast<std::size_t>(placement.physical())),
        rows_(first_field_, 0),
        needed_(static_cast<std::size_t>(ranks), 0),
        entered_(static_cast<std::size_t>((ranks + domain - 1) / domain), 0),
        token_ranks_((static_cast<std::size_t>(ranks) + 63) / 64, 0) {
    for (int expert = 0; expert < placement.physical(); ++expert)
      home_.push_back(static_cast<std::uint32_t>(placement.rank_of(expert)));
    for (int rank = 0; rank < ranks; ++rank) domain_of_.push_back(static_cast<std::uint32_t>(rank / domain));
  }

  /// `experts` [k] of one token.
  void add(const int* experts, int k) {
    constexpr std::size_t kFewWords = 16;
    last_domain_ = ~0U;
    if (token_ranks_.size() > kFewWords) return add_sorted(experts, k);
    for (int i = 0; i < k; ++i) {
      const auto expert = static_cast<std::size_t>(experts[i]);
      ++rows_[expert];
      const std::uint32_t rank = home_[expert];
      token_ranks_[rank / 64] |= std::uint64_t{1} << rank % 64;
    }
    for (std::size_t word = 0; word < token_ranks_.size(); ++word) {
      // Ascending, so that a domain's ranks come together.
      for (std::uint64_t bits = token_ranks_[word]; bits != 0; bits &= bits - 1)
        need(static_cast<std::uint32_t>(word * 64 + static_cast<std::size_t>(std::countr_zero(bits))));
      token_ranks_[word] = 0;
    }
  }

  /// Adds what was counted of `source`'s tokens, each for `weight`, and starts anew.
  template <typename Value>
  void take(int source, Value weight, std::vector<Value>& counts, std::vector<PairTraffic>* pairs) {
    const auto at = [&](std::size_t rank, Field field) -> Value& {
      return counts[first_field_ + rank * FieldCount + field];
    };
    const std::size_t ranks = needed_.size(), from = static_cast<std::size_t>(source);
    const std::size_t home = domain_of_[from], slots = rows_.size() / ranks;
    const auto pair = [&](std::size_t a, std::size_t b) -> PairTraffic& { return (*pairs)[a * ranks + b]; };
    // Sums of whole numbers are the same in any order.
    if constexpr (!std::is_integral_v<Value>) std::sort(touched_.begin(), touched_.end());
    for (const std::size_t rank : touched_) {
      Value rows = 0;
      for (std::size_t expert = rank * slots; expert < (rank + 1) * slots; ++expert) {
        const Value own = static_cast<Value>(rows_[expert]) * weight;
        counts[expert] += own;
        rows += own;
        rows_[expert] = 0;
      }
      const Value tokens = static_cast<Value>(needed_[rank]) * weight;
      needed_[rank] = 0;
      const bool self = rank == from, near = domain_of_[rank] == home;
      at(from, self ? CopiesSelf : near ? CopiesOutNear : CopiesOutFar) += rows;
      at(from, self ? RanksSelf : near ? RanksOutNear : RanksOutFar) += tokens;
      if (pairs != nullptr) pair(from, rank).copies += static_cast<double>(rows);
      if (pairs != nullptr) pair(from, rank).ranks += static_cast<double>(tokens);
      if (self) continue;
      at(rank, near ? CopiesInNear : CopiesInFar) += rows;
      at(rank, near ? RanksInNear : RanksInFar) += tokens;
      if (near) continue;
      const auto gate =
          static_cast<std::size_t>(gate_of(source, static_cast<int>(rank), domain_, static_cast<int>(ranks)));
      const Value entering = static_cast<Value>(entered_[domain_of_[rank]]) * weight;
      entered_[domain_of_[rank]] = 0;  // once a domain: its other ranks find nothing left
      at(from, RailOut) += entering;
      at(gate, RailIn) += entering;
      if (pairs != nullptr) pair(from, gate).rail += static_cast<double>(entering);
      if (gate == rank) continue;
      at(gate, ForwardOut) += tokens;
      at(rank, ForwardIn) += tokens;
      if (pairs != nullptr) pair(gate, rank).forward += static_cast<double>(tokens);
    }
    entered_[home] = 0;
    touched_.clear();
  }

 private:
  /// Among many ranks a token's few are sorted.
  void add_sorted(const int* experts, int k) {
    chosen_.clear();
    for (int i = 0; i < k; ++i) {
      const auto expert = static_cast<std::size_t>(experts[i]);
      ++rows_[expert];
      chosen_.push_back(home_[expert]);
    }
    std::sort(chosen_.begin(), chosen_.end());
    chosen_.erase(std::unique(chosen_.begin(), chosen_.end()), chosen_.end());
    for (const std::uint32_t rank : chosen_) need(rank);
  }

  /// A token's ranks come in ascending order.
  void need(std::uint32_t rank) {
    if (needed_[rank]++ == 0) touched_.push_back(rank);
    entered_[domain_of_[rank]] += domain_of_[rank] != last_domain_ ? 1 : 0;
    last_domain_ = domain_of_[rank];
  }

  int domain_;
  std::uint32_t last_domain_ = ~0U;    ///< of the token at hand
  std::vector<std::uint32_t> chosen_;  ///< ranks of the token at hand
  std::vector<std::size_t> touched_;   ///< ranks that are needed
  std::size_t first_field_;
  std::vector<std::uint32_t> rows_;         ///< [physical experts]
  std::vector<std::uint32_t> needed_;       ///< [ranks] tokens that need the rank
  std::vector<std::uint32_t> entered_;      ///< [domains] tokens that need one of its ranks
  std::vector<std::uint64_t> token_ranks_;  ///< ranks of the token at hand, a bit each
  std::vector<std::uint32_t> home_;         ///< [physical experts] their ranks
  std::vector<std::uint32_t> domain_of_;    ///< [ranks]
};

RoutedLoad empty_load(const ExpertPlacement& placement, std::span<const TokenRange> tokens) {
  RoutedLoad load;
  load.expert_rows.assign(static_cast<std::size_t>(placement.physical()), 0);
  load.ranks.resize(tokens.size());
  for (std::size_t r = 0; r < tokens.size(); ++r) load.ranks[r].tokens = static_cast<double>(tokens[r].size());
  return load;
}

template <typename Value>
void add_weighted(const std::vector<Value>& counts, double weight, RoutedLoad& load) {
  std::size_t i = 0;
  for (double& rows : load.expert_rows) rows = static_cast<double>(counts[i++]) * weight;
  for (RankTraffic& traffic : load.ranks)
    for (double RankTraffic::*field : kFields) traffic.*field = static_cast<double>(counts[i++]) * weight;
}

/// Which of the ranks' tokens are counted, and for how many each stands.
struct CountedTokens {
  std::vector<RankTokens> tokens;  ///< of the ranks that have some
  std::vector<double> weights;     ///< [ranks]
  std::optional<double> weight;    ///< of all ranks, when it is the same
  bool sampled = false;
};

CountedTokens counted_of(const Router& router, std::span<const TokenRange> tokens) {
  CountedTokens out;
  out.weights.assign(tokens.size(), 1);
  out.weight = 1;
  for (std::size_t rank = 0; rank < tokens.size(); ++rank) {
    const TokenRange range = tokens[rank];
    if (range.size() <= 0) continue;
    const std::int64_t counted = std::min(range.size(), router.counted_tokens());
    const double weight = static_cast<double>(range.size()) / static_cast<double>(counted);
    out.sampled = out.sampled || counted < range.size();
    out.weights[rank] = weight;
    if (out.tokens.empty())
      out.weight = weight;
    else if (out.weight != weight)
      out.weight.reset();
    out.tokens.push_back({static_cast<int>(rank), {range.begin, range.begin + counted}});
  }
  return out;
}

/// Of a token: `copies` and the chance of a copy to any one rank, and of one to any one domain.
void expected_pairs(RoutedLoad& load, int domain, double copies, double per_rank, double per_domain) {
  const auto ranks = static_cast<int>(load.ranks.size());
  load.pairs.resize(load.ranks.size() * load.ranks.size());
  for (int from = 0; from < ranks; ++from) {
    const double tokens = load.ranks[static_cast<std::size_t>(from)].tokens;
    for (int to = 0; to < ranks; ++to) {
      PairTraffic& pair = pair_of(load, from, to);
      pair.copies += tokens * copies;
      pair.ranks += tokens * per_rank;
      if (to / domain == from / domain) continue;
      if (to % domain == 0) pair_of(load, from, gate_of(from, to, domain, ranks)).rail += tokens * per_domain;
      const int gate = gate_of(from, to, domain, ranks);
      if (gate != to) pair_of(load, gate, to).forward += tokens * per_rank;
    }
  }
}

}  // namespace

std::int64_t Router::counted_tokens() const {
  return std::max<std::int64_t>(256, (std::int64_t{1} << 18) / world_.ranks);
}

RoutedLoad Router::load(int layer, std::span<const TokenRange> tokens, int domain, bool pairs) const {
  const Class& c = classes_[index(layer)];
  return c.blocks != nullptr ? closed_form(c, tokens, domain, pairs) : counted_load(layer, tokens, domain, pairs);
}

/// Counts the tokens of each rank; `taken(counter, rank)` after each.
template <typename Taken>
void Router::count_tokens(int layer, std::span<const RankTokens> tokens, int domain, Taken taken) const {
  // In runs, so that the choices stay in the cache.
  constexpr std::int64_t kRun = 512;
  Counter counter(classes_[index(layer)].placement, world_.ranks, domain);
  std::vector<int> experts(static_cast<std::size_t>(kRun * top_k_.k));
  for (const RankTokens& of_rank : tokens) {
    if (of_rank.tokens.size() <= 0) continue;
    for (std::int64_t begin = of_rank.tokens.begin; begin < of_rank.tokens.end; begin += kRun) {
      const std::int64_t end = std::min(begin + kRun, of_rank.tokens.end);
      experts_of_tokens(of_rank.rank, layer, {begin, end}, experts.data());
      for (std::int64_t i = 0; i < end - begin; ++i) counter.add(experts.data() + i * top_k_.k, top_k_.k);
    }
    taken(counter, of_rank.rank);
  }
}

void Router::add_counts(int layer, std::span<const RankTokens> tokens, int domain, RoutedCounts& counts) const {
  const ExpertPlacement& placement = classes_[index(layer)].placement;
  if (counts.empty()) counts.assign(counts_size(placement, static_cast<std::size_t>(world_.ranks)), 0);
  count_tokens(layer, tokens, domain,
               [&](Counter& counter, int rank) { counter.take<std::uint32_t>(rank, 1, counts, nullptr); });
}

RoutedLoad Router::load_of(const RoutedCounts& counts, int layer, std::span<const TokenRange> tokens,
                           double weight) const {
  RoutedLoad load = empty_load(classes_[index(layer)].placement, tokens);
  load.sampled = weight != 1;
  add_weighted(counts, weight, load);
  return load;
}

RoutedLoad Router::counted_load(int layer, std::span<const TokenRange> tokens, int domain, bool pairs) const {
  DBO_CHECK(static_cast<int>(tokens.size()) == world_.ranks, "a token range for every rank");
  const CountedTokens counted = counted_of(*this, tokens);
  const ExpertPlacement& placement = classes_[index(layer)].placement;
  if (counted.weight && !pairs) {
    RoutedCounts counts;
    add_counts(layer, counted.tokens, domain, counts);
    return load_of(counts, layer, tokens, *counted.weight);
  }
  RoutedLoad load = empty_load(placement, tokens);
  load.sampled = counted.sampled;
  if (pairs) load.pairs.resize(tokens.size() * tokens.size());
  std::vector<double> counts(counts_size(placement, tokens.size()), 0);
  count_tokens(layer, counted.tokens, domain, [&](Counter& counter, int rank) {
    counter.take<double>(rank, counted.weights[static_cast<std::size_t>(rank)], counts, pairs ? &load.pairs : nullptr);
  });
  add_weighted(counts, 1, load);
  return load;
}

RoutedLoad Router::closed_form(const Class& c, std::span<const TokenRange> tokens, int domain, bool pairs) const {
  DBO_CHECK(static_cast<int>(tokens.size()) == world_.ranks, "a token range for every rank");
  RoutedLoad load = empty_load(c.placement, tokens);
  const int ranks = world_.ranks, domains = (ranks + domain - 1) / domain;
  const double per_rank = mean_hit(c.placement, top_k_, ranks, 1);
  const double per_domain = mean_hit(c.placement, top_k_, ranks, domain);
  std::vector<double> in_domain(static_cast<std::size_t>(domains), 0), on_rail(static_cast<std::size_t>(domain), 0);
  double total = 0;
  for (int r = 0; r < ranks; ++r) {
    const double sent = load.ranks[static_cast<std::size_t>(r)].tokens;
    in_domain[static_cast<std::size_t>(r / domain)] += sent;
    on_rail[static_cast<std::size_t>(r % domain)] += sent;
    total += sent;
  }
  std::fill(load.expert_rows.begin(), load.expert_rows.end(), total * top_k_.k / c.placement.physical());
  const double copies = static_cast<double>(top_k_.k) / ranks;  // of a token to any one rank
  for (int r = 0; r < ranks; ++r) {
    RankTraffic& t = load.ranks[static_cast<std::size_t>(r)];
    const int size = std::min(domain, ranks - r / domain * domain);
    const double near = size - 1, far = ranks - size;
    const double near_tokens = in_domain[static_cast<std::size_t>(r / domain)] - t.tokens;
    const double far_tokens = total - in_domain[static_cast<std::size_t>(r / domain)];
    // Every domain has a rank at this place unless the last one is short: then its places serve more than one rail.
    const double rail_tokens = size == domain && ranks % domain == 0
                                   ? on_rail[static_cast<std::size_t>(r % domain)] - t.tokens
                                   : far_tokens / size;
    t.copies_self = t.tokens * copies;
    t.copies_out_near = t.tokens * copies * near;
    t.copies_out_far = t.tokens * copies * far;
    t.copies_in_near = near_tokens * copies;
    t.copies_in_far = far_tokens * copies;
    t.ranks_self = t.tokens * per_rank;
    t.ranks_out_near = t.tokens * per_rank * near;
    t.ranks_out_far = t.tokens * per_rank * far;
    t.ranks_in_near = near_tokens * per_rank;
    t.ranks_in_far = far_tokens * per_rank;
    t.rail_out = t.tokens * per_domain * (domains - 1);
    t.rail_in = rail_tokens * per_domain;
    t.forward_out = rail_tokens * per_rank * near;
    t.forward_in = (far_tokens - rail_tokens) * per_rank;
  }
  if (pairs) expected_pairs(load, domain, copies, per_rank, per_domain);
  return load;
}

RoutedLoad RoutedLoads::load(const Router& router, int layer, std::span<const TokenRange> tokens, int domain,
                             bool pairs) {
  constexpr std::size_t kMostRanksOfPairs = 128;  // their number squared is kept for every layer
  const auto echoed = [&](RoutedLoad load) {
    if (echo_ >= 0) add_echo(router, layer, tokens[static_cast<std::size_t>(echo_)], load);
    return load;
  };
  if (pairs && tokens.size() > kMostRanksOfPairs) return echoed(router.load(layer, tokens, domain, pairs));
  std::vector<std::int64_t> key{router.same_load_on_all_layers() ? 0 : router.routing_class(layer), domain,
                                pairs ? 1 : 0};
  for (const TokenRange& range : tokens) key.insert(key.end(), {range.begin, range.end});
  const auto [at, fresh] = known_.try_emplace(std::move(key));
  if (fresh)
    at->second = echoed(router.counts_tokens() && !pairs ? count(router, layer, tokens, domain)
                                                         : router.load(layer, tokens, domain, pairs));
  return at->second;
}

void RoutedLoads::add_echo(const Router& router, int layer, TokenRange tokens, RoutedLoad& load) const {
  const std::size_t slots = load.expert_rows.size() / load.ranks.size();
  const auto picked = static_cast<std::size_t>(tokens.size()) * static_cast<std::size_t>(router.top_k());
  std::vector<double> rows(slots, 0.0);
  if (router.counts_tokens()) {
    std::vector<int> experts(picked);
    router.experts_of_tokens(echo_, layer, tokens, experts.data());
    for (const int expert : experts) rows[static_cast<std::size_t>(expert) % slots] += 1;
  } else {
    rows.assign(slots, static_cast<double>(picked) / static_cast<double>(slots));
  }
  RankTraffic t = load.ranks[static_cast<std::size_t>(echo_)];
  t.copies_in_near = t.copies_out_near;
  t.copies_in_far = t.copies_out_far;
  t.ranks_in_near = t.ranks_out_near;
  t.ranks_in_far = t.ranks_out_far;
  t.rail_in = t.rail_out;
  t.forward_in = t.forward_out;
  std::fill(load.ranks.begin(), load.ranks.end(), t);
  for (std::size_t slot = 0; slot < load.expert_rows.size(); ++slot) load.expert_rows[slot] = rows[slot % slots];
}

void RoutedLoads::clear() {
  known_.clear();
  prefixes_.clear();
  prefix_bytes_ = 0;
}

namespace {

/// How many of a rank's tokens the n-th prefix counts: every 32 first, then every 256, as long batches need not be met
/// as closely.
constexpr std::int64_t kFine = 32, kCoarse = 256, kFineBlocks = 64;
std::int64_t prefix_tokens(std::size_t n) {
  const auto blocks = static_cast<std::int64_t>(n);
  return std::min(blocks, kFineBlocks) * kFine + std::max<std::int64_t>(blocks - kFineBlocks, 0) * kCoarse;
}
/// The last prefix of at most so many tokens.
std::size_t prefix_below(std::int64_t tokens) {
  constexpr std::int64_t kFineTokens = kFine * kFineBlocks;
  return static_cast<std::size_t>(tokens <= kFineTokens ? tokens / kFine
                                                        : kFineBlocks + (tokens - kFineTokens) / kCoarse);
}

/// Prefixes kept of one kind of router; beyond, tokens are counted one by one.
constexpr std::size_t kMostPrefixBytes = std::size_t{96} << 20;

}  // namespace

const RoutedLoads::Prefixes& RoutedLoads::prefixes(const Router& router, int layer, int domain, int part,
                                                   std::size_t blocks, int ranks) {
  Prefixes& out = prefixes_[{router.routing_class(layer), domain, part}];
  if (out.empty()) {
    out.emplace_back();
    router.add_counts(layer, {}, domain, out.back());
  }
  const std::size_t bytes = out.front().size() * sizeof(std::uint32_t);
  std::vector<RankTokens> tokens;
  while (out.size() <= blocks && prefix_bytes_ + bytes <= kMostPrefixBytes) {
    const TokenRange block{prefix_tokens(out.size() - 1), prefix_tokens(out.size())};
    tokens.clear();
    for (int rank = part; rank < ranks; rank += router.tensor_parallel()) tokens.push_back({rank, block});
    RoutedCounts next = out.back();
    router.add_counts(layer, tokens, domain, next);
    out.push_back(std::move(next));
    prefix_bytes_ += bytes;
  }
  return out;
}

RoutedLoad RoutedLoads::count(const Router& router, int layer, std::span<const TokenRange> tokens, int domain) {
  const CountedTokens counted = counted_of(router, tokens);
  if (!counted.weight || counted.tokens.size() < tokens.size()) return router.load(layer, tokens, domain);
  const auto ranks = static_cast<int>(tokens.size());
  RoutedCounts sum;
  std::vector<RankTokens> singly;
  // Ranks at the same place of their tensor groups send the same tokens where batches are alike.
  for (int part = 0; part < router.tensor_parallel(); ++part) {
    TokenRange common = counted.tokens[static_cast<std::size_t>(part)].tokens;
    for (int rank = part; rank < ranks; rank += router.tensor_parallel()) {
      const TokenRange& own = counted.tokens[static_cast<std::size_t>(rank)].tokens;
      common = {std::max(common.begin, own.begin), std::min(common.end, own.end)};
    }
    std::size_t first = prefix_below(common.begin), last = prefix_below(std::max<std::int64_t>(common.end, 0));
    if (prefix_tokens(first) < common.begin) ++first;
    if (first < last) {
      const Prefixes& known = prefixes(router, layer, domain, part, last, ranks);
      last = std::min(last, known.size() - 1);
      if (first < last) {
        if (sum.empty()) router.add_counts(layer, {}, domain, sum);
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += known[last][i] - known[first][i];
      }
    }
    const bool blocks = first < last;
    for (int rank = part; rank < ranks; rank += router.tensor_parallel()) {
      const TokenRange& own = counted.tokens[static_cast<std::size_t>(rank)].tokens;
      const std::int64_t head = blocks ? prefix_tokens(first) : own.end;
      singly.push_back({rank, {own.begin, head}});
      if (blocks) singly.push_back({rank, {prefix_tokens(last), own.end}});
    }
  }
  router.add_counts(layer, singly, domain, sum);
  return router.load_of(sum, layer, tokens, *counted.weight);
}

}  // namespace dbo
