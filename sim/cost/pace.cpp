#include "sim/cost/pace.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "sim/base/error.h"
#include "sim/base/json.h"

namespace dbo {

Pace::Pace(const std::vector<Straggler>& stragglers, int ranks, int tensor_parallel) {
  if (stragglers.empty()) return;
  of_rank_.resize(static_cast<std::size_t>(ranks));
  for (const Straggler& s : stragglers)
    for (const int rank : s.ranks) {
      DBO_CHECK(rank >= 0 && rank < ranks, "a straggler is a rank of the world");
      of_rank_[static_cast<std::size_t>(rank)] = {s.compute_factor, s.compute_factor, s.wire_factor, 0};
    }
  std::map<std::tuple<double, double, double>, int> kinds;
  for (int first = 0; first < ranks; first += tensor_parallel) {
    const auto begin = of_rank_.begin() + first, end = begin + std::min(tensor_parallel, ranks - first);
    double together = 1;
    for (auto rank = begin; rank != end; ++rank) together = std::max(together, rank->own);
    for (auto rank = begin; rank != end; ++rank) {
      rank->together = together;
      rank->kind =
          kinds.emplace(std::tuple{rank->own, together, rank->wire}, static_cast<int>(kinds.size())).first->second;
    }
  }
}

double Pace::compute(OpKind kind, int rank) const {
  if (even()) return 1;
  const Factors& f = of_rank_[static_cast<std::size_t>(rank)];
  const bool alone = kind == OpKind::MLP || kind == OpKind::S;
  return alone ? f.own : f.together;
}

double Pace::slowest_wire() const {
  double slowest = 1;
  for (const Factors& f : of_rank_) slowest = std::max(slowest, f.wire);
  return slowest;
}

Ns slower(Ns time, double factor) {
  return factor == 1 ? time : ns_from_us(static_cast<double>(time.count()) / 1000 * factor);
}

namespace {

/// Without a fraction where there is none.
std::string factor_text(double factor) {
  if (factor == std::floor(factor)) return std::to_string(static_cast<int>(factor));
  std::string text;
  append_json_number(text, factor);
  return text;
}

}  // namespace

std::vector<std::string> straggler_sentences(const std::vector<Straggler>& stragglers) {
  constexpr std::size_t kListed = 8;
  std::vector<std::string> out;
  for (const Straggler& s : stragglers) {
    std::string text = s.ranks.size() == 1 ? "Rank" : "Ranks";
    for (std::size_t i = 0; i < s.ranks.size() && i < kListed; ++i)
      text += (i == 0 ? " " : ", ") + std::to_string(s.ranks[i]);
    if (s.ranks.size() > kListed) text += " and " + std::to_string(s.ranks.size() - kListed) + " more";
    text += s.ranks.size() == 1 ? " is slow: its" : " are slow: their";
    if (s.compute_factor > 1) text += " compute ops take " + factor_text(s.compute_factor) + " times as long";
    if (s.compute_factor > 1 && s.wire_factor > 1) text += ", ports " + factor_text(s.wire_factor) + " times";
    if (s.compute_factor == 1) text += " ports take " + factor_text(s.wire_factor) + " times as long";
    out.push_back(text + ".");
  }
  return out;
}

}  // namespace dbo
