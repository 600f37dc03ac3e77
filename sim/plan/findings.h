// Collects what a check finds: one entry a kind of failure, with how often it occurs.
#pragma once

#include <array>
#include <map>
#include <utility>

#include "sim/plan/plan_check.h"

namespace dbo {

class Findings {
 public:
  using Key = std::array<std::uint32_t, 4>;  ///< what makes two occurrences the same failure; up to the check

  /// Findings that follow are on the ranks of which this is the lowest.
  void at_rank(int rank) { rank_ = rank; }

  /// Counts an occurrence; only the first of a code and key is put into words, by `text`.
  template <typename Text>
  void add(std::string_view code, bool stops, const Key& key, Text&& text) {
    const auto [entry, fresh] = index_.try_emplace(std::pair(std::string(code), key), list_.size());
    if (fresh) {
      list_.push_back({std::string(code), stops, text(), rank_, 1});
    } else if (list_[entry->second].rank == rank_) {
      ++list_[entry->second].times;
    }
  }

  bool empty() const { return list_.empty(); }
  std::vector<PlanFinding> take() { return std::move(list_); }

 private:
  int rank_ = 0;
  std::map<std::pair<std::string, Key>, std::size_t> index_;
  std::vector<PlanFinding> list_;
};

}  // namespace dbo
