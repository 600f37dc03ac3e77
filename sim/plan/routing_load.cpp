// Counts of one dispatch: in closed form for balanced routing, token by token for the other kinds.
#include <algorithm>

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

/// Adds up one rank's tokens; `stamp` arrays remember which token last touched a rank or domain.
class Counter {
 public:
  Counter(const ExpertPlacement& placement, int ranks, int domain, RoutedLoad& load)
      : placement_(placement),
        domain_(domain),
        load_(load),
        rank_stamp_(static_cast<std::size_t>(ranks), 0),
        domain_stamp_(static_cast<std::size_t>(ceil_div_int(ranks, domain)), 0) {}

  /// `experts` [k] of one token of `source`, counted `weight` times.
  void add(int source, const int* experts, int k, double weight) {
    ++stamp_;
    RankTraffic& from = load_.ranks[static_cast<std::size_t>(source)];
    const int home = source / domain_;
    domain_stamp_[static_cast<std::size_t>(home)] = stamp_;
    for (int i = 0; i < k; ++i) {
      load_.expert_rows[static_cast<std::size_t>(experts[i])] += weight;
      const int rank = placement_.rank_of(experts[i]);
      RankTraffic& to = load_.ranks[static_cast<std::size_t>(rank)];
      const bool self = rank == source, near = rank / domain_ == home;
      (self ? from.copies_self : near ? from.copies_out_near : from.copies_out_far) += weight;
      if (!self) (near ? to.copies_in_near : to.copies_in_far) += weight;
      const bool paired = !load_.pairs.empty();
      if (paired) pair_of(load_, source, rank).copies += weight;
      if (rank_stamp_[static_cast<std::size_t>(rank)] == stamp_) continue;
      rank_stamp_[static_cast<std::size_t>(rank)] = stamp_;
      (self ? from.ranks_self : near ? from.ranks_out_near : from.ranks_out_far) += weight;
      if (!self) (near ? to.ranks_in_near : to.ranks_in_far) += weight;
      if (paired) pair_of(load_, source, rank).ranks += weight;
      if (!near) add_far(source, rank, from, to, weight);
    }
  }

 private:
  static int ceil_div_int(int a, int b) { return (a + b - 1) / b; }

  void add_far(int source, int rank, RankTraffic& from, RankTraffic& to, double weight) {
    const auto domain = static_cast<std::size_t>(rank / domain_);
    const int gate = gate_of(source, rank, domain_, static_cast<int>(load_.ranks.size()));
    RankTraffic& through = load_.ranks[static_cast<std::size_t>(gate)];
    if (domain_stamp_[domain] != stamp_) {
      domain_stamp_[domain] = stamp_;
      from.rail_out += weight;
      through.rail_in += weight;
      if (!load_.pairs.empty()) pair_of(load_, source, gate).rail += weight;
    }
    if (gate != rank) {
      if (!load_.pairs.empty()) pair_of(load_, gate, rank).forward += weight;
      through.forward_out += weight;
      to.forward_in += weight;
    }
  }

  const ExpertPlacement& placement_;
  int domain_;
  RoutedLoad& load_;
  std::vector<std::uint64_t> rank_stamp_, domain_stamp_;
  std::uint64_t stamp_ = 0;
};

RoutedLoad empty_load(const ExpertPlacement& placement, std::span<const TokenRange> tokens) {
  RoutedLoad load;
  load.expert_rows.assign(static_cast<std::size_t>(placement.physical()), 0);
  load.ranks.resize(tokens.size());
  for (std::size_t r = 0; r < tokens.size(); ++r) load.ranks[r].tokens = static_cast<double>(tokens[r].size());
  return load;
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

RoutedLoad Router::counted_load(int layer, std::span<const TokenRange> tokens, int domain, bool pairs) const {
  DBO_CHECK(static_cast<int>(tokens.size()) == world_.ranks, "a token range for every rank");
  const ExpertPlacement& placement = classes_[index(layer)].placement;
  RoutedLoad load = empty_load(placement, tokens);
  if (pairs) load.pairs.resize(tokens.size() * tokens.size());
  Counter counter(placement, world_.ranks, domain, load);
  std::vector<int> experts;
  for (int rank = 0; rank < world_.ranks; ++rank) {
    const TokenRange range = tokens[static_cast<std::size_t>(rank)];
    if (range.size() <= 0) continue;
    const std::int64_t counted = std::min(range.size(), counted_tokens());
    load.sampled = load.sampled || counted < range.size();
    experts.resize(static_cast<std::size_t>(counted * top_k_.k));
    experts_of_tokens(rank, layer, {range.begin, range.begin + counted}, experts.data());
    const double weight = static_cast<double>(range.size()) / static_cast<double>(counted);
    for (std::int64_t i = 0; i < counted; ++i) counter.add(rank, experts.data() + i * top_k_.k, top_k_.k, weight);
  }
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

}  // namespace dbo
