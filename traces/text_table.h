// Aligned columns for people, and numbers as people read them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/base/units.h"

namespace dbo {

/// A table with a head line. The first column is left-aligned, the others right-aligned; the last is left-aligned when
/// it holds words.
class TextTable {
 public:
  explicit TextTable(std::vector<std::string> head, bool words_last = false)
      : rows_{std::move(head)}, words_last_(words_last) {}

  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  bool empty() const { return rows_.size() == 1; }
  /// Lines with `indent` blanks in front; columns two blanks apart. Width counts characters, not bytes.
  std::string text(int indent = 2) const;

 private:
  std::vector<std::vector<std::string>> rows_;
  bool words_last_;
};

std::string grouped(std::int64_t number);                 ///< "14,240"
std::string ms_text(Ns time);                             ///< "129.012 ms", rounded half up
std::string us_short(Ns time);                            ///< "12.3", microseconds with one decimal
std::string percent_text(std::optional<double> percent);  ///< "96.31 %", "-" when there is none
std::string bytes_text(std::uint64_t bytes);              ///< "3.13 MB"

/// `value` with so many decimals, rounded half up; locale plays no part.
std::string fixed_text(double value, int decimals);

}  // namespace dbo
