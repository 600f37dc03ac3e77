// Which experts each token goes to, and what that makes of rows and traffic: the routing of a plan turned into numbers.
// Costs take the counts, the GPU runtime fills its routing tables from the same generator.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "sim/plan/expert_draw.h"
#include "sim/plan/expert_placement.h"
#include "sim/plan/plan.h"

namespace dbo {

/// Tokens [begin, end) of a rank's whole batch (not of its ubatch), so that split and un-split steps route alike.
struct TokenRange {
  std::int64_t begin = 0, end = 0;

  std::int64_t size() const { return end - begin; }
  friend bool operator==(const TokenRange&, const TokenRange&) = default;
};

/// The tokens a GPU of a tensor-parallel group sends: the group's tokens cut into equal parts, in rank order.
TokenRange tensor_share(TokenRange tokens, int rank, int tensor_parallel);

/// What one dispatch moves at one rank (the combine moves the same the other way). `near` is inside the NVLink domain,
/// `far` outside; the rank's traffic to itself is neither. Fractions occur only where counts are expectations.
struct RankTraffic {
  double tokens = 0;  ///< it sends from
  // One copy for each expert picked (low latency).
  double copies_self = 0, copies_out_near = 0, copies_out_far = 0, copies_in_near = 0, copies_in_far = 0;
  // One copy for each rank with a picked expert (deduplicated per rank).
  double ranks_self = 0, ranks_out_near = 0, ranks_out_far = 0, ranks_in_near = 0, ranks_in_far = 0;
  // Two-level: one copy for each far domain, to the rank at the same place in it, which passes it on inside.
  double rail_out = 0, rail_in = 0, forward_out = 0, forward_in = 0;

  friend bool operator==(const RankTraffic&, const RankTraffic&) = default;
};

/// What one dispatch moves from one rank to another, in the same units.
struct PairTraffic {
  double copies = 0;   ///< one for each expert picked
  double ranks = 0;    ///< one for each rank with a picked expert
  double rail = 0;     ///< two-level: into the other's far domain, which passes it on
  double forward = 0;  ///< two-level: passed on inside a domain, from the rank it came to
};

/// One dispatch over all ranks.
struct RoutedLoad {
  std::vector<double> expert_rows;  ///< [ranks * slots] rows each physical expert receives
  std::vector<RankTraffic> ranks;   ///< [ranks]
  std::vector<PairTraffic> pairs;   ///< [ranks * ranks] by sender, then receiver; only if asked for
  bool sampled = false;             ///< counted on part of the tokens and scaled up
};

/// Tokens of one rank.
struct RankTokens {
  int rank = 0;
  TokenRange tokens;
};

/// Whole counts of a dispatch, which add up over tokens: what drawn routing is counted in.
using RoutedCounts = std::vector<std::uint32_t>;

/// Expert choices and their counts. Immutable after construction; every method may be called from any thread.
class Router {
 public:
  /// Takes world, shape, tensor parallelism and routing of the plan. A shape without experts counts as one expert a
  /// rank and top-1. Throws InputError when experts do not divide over ranks or a table does not fit the shape.
  explicit Router(const Plan& plan);

  int top_k() const { return top_k_.k; }
  /// Layers with the same class route alike; the number of classes is 1 unless routing differs by layer.
  int routing_class(int layer) const;
  int routing_classes() const { return static_cast<int>(classes_.size()); }
  /// Whether `load` is the same for every layer (one class, or balanced, where a fresh draw changes no count).
  bool same_load_on_all_layers() const { return classes_.size() == 1 || kind_ == RoutingKind::Balanced; }
  const ExpertPlacement& placement(int layer) const { return classes_[index(layer)].placement; }

  /// The top_k physical experts of a token, all of different logical experts. `rank` is any GPU of the token's
  /// data-parallel rank.
  std::vector<int> experts_of_token(int rank, int layer, std::int64_t token) const;
  /// The same for a range, [tokens.size()][top_k] into `out`: what to use for more than a few.
  void experts_of_tokens(int rank, int layer, TokenRange tokens, int* out) const;

  /// Counts of one dispatch. `tokens` [ranks]: what each rank sends (tensor_share of its ubatch); `domain`: ranks that
  /// share an NVLink domain, consecutive. Balanced routing is counted in closed form: exactly equal rows, expected
  /// distinct ranks and domains, averaged over the ranks. Other kinds are counted token by token, on a sample of the
  /// tokens when a rank sends more than `counted_tokens()`. `pairs`: also who sends to whom.
  RoutedLoad load(int layer, std::span<const TokenRange> tokens, int domain, bool pairs = false) const;
  /// Balanced routing counted token by token, as the other kinds are.
  RoutedLoad counted_load(int layer, std::span<const TokenRange> tokens, int domain, bool pairs = false) const;

  /// How many tokens of a rank are counted at most: some 260,000 of all ranks together.
  std::int64_t counted_tokens() const;
  /// Whether `load` counts tokens.
  bool counts_tokens() const { return kind_ != RoutingKind::Balanced; }
  int tensor_parallel() const { return tensor_parallel_; }

  /// Adds the tokens to `counts`; empty ones are set up first. The counts are for one layer's class and one domain.
  void add_counts(int layer, std::span<const RankTokens> tokens, int domain, RoutedCounts& counts) const;
  /// A load of tokens that were counted, each for `weight` of them.
  RoutedLoad load_of(const RoutedCounts& counts, int layer, std::span<const TokenRange> tokens, double weight) const;

 private:
  struct Class {
    ExpertPlacement placement;
    std::unique_ptr<BalancedBlocks> blocks;  ///< balanced
    std::unique_ptr<WeightedDraw> draw;      ///< every other kind
    std::uint64_t key = 0;
  };

  template <typename Taken>
  void count_tokens(int layer, std::span<const RankTokens> tokens, int domain, Taken taken) const;
  std::size_t index(int layer) const { return static_cast<std::size_t>(routing_class(layer)); }
  void balanced_tokens(const Class& c, int source, TokenRange tokens, int* out) const;
  void drawn_tokens(const Class& c, int source, TokenRange tokens, int* out) const;
  RoutedLoad closed_form(const Class& c, std::span<const TokenRange> tokens, int domain, bool pairs) const;

  World world_;
  int tensor_parallel_ = 1;
  TopK top_k_;
  RoutingKind kind_ = RoutingKind::Balanced;
  std::vector<int> class_of_layer_;
  std::vector<Class> classes_;
};

/// Loads counted before, by routers alike: same world, shape, tensor parallelism and routing. Batches of many sizes
/// share what is counted of their tokens: the counts of the first 32 of every rank, of the first 64, and so on. The
/// loads are those of Router::load, bit for bit; with pairs they are counted for one batch at a time, and kept unless
/// ranks are many. For one thread.
class RoutedLoads {
 public:
  RoutedLoad load(const Router& router, int layer, std::span<const TokenRange> tokens, int domain, bool pairs = false);
  /// From now on every rank is as this one, and what reaches it is what it sends, from each rank as many copies as go
  /// to it: its experts get the rows that its own tokens pick, expert e of another rank's as its own e modulo their
  /// number. So a GPU does it that plays a rank's peers. Pairs stay.
  void echo(int rank) {
    echo_ = rank;
    clear();
  }
  /// Forgets the loads, which are many when batches are; what their tokens were counted to stays.
  void next_batch() { known_.clear(); }
  void clear();

 private:
  using Prefixes = std::vector<RoutedCounts>;  ///< [n]: of every rank's first n blocks of tokens

  RoutedLoad count(const Router& router, int layer, std::span<const TokenRange> tokens, int domain);
  void add_echo(const Router& router, int layer, TokenRange tokens, RoutedLoad& load) const;
  const Prefixes& prefixes(const Router& router, int layer, int domain, int part, std::size_t blocks, int ranks);

  std::map<std::vector<std::int64_t>, RoutedLoad> known_;  ///< by routing class, domain, pairs, every rank's tokens
  std::map<std::vector<int>, Prefixes> prefixes_;          ///< by routing class, domain and part of a tensor group
  std::size_t prefix_bytes_ = 0;
  int echo_ = -1;
};

}  // namespace dbo
