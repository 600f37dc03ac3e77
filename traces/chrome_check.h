// Judges a Chrome trace file by the rules it must keep to be right in every viewer and to join with other traces: one
// finding a broken rule. Knows nothing of the writer; it reads text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dbo {

struct ChromeFinding {
  std::uint64_t offset = 0;  ///< byte where the event begins (0: the file as a whole)
  std::string text;
};

/// The rules of our own dialect: strict JSON in object form, displayTimeUnit "ns", metadata; only phases X M s f C;
/// whole positive pids and tids; times with exactly three decimals, none negative, no empty slice; named and ordered
/// processes and threads; slices of a row nested or disjoint; every arrow id used for one start and one end, in that
/// order, each inside a slice of its row; args of op slices complete, true to process and thread, each (rank, plan_op)
/// once, wires aside, which carry their send's. At most `limit` findings.
std::vector<ChromeFinding> check_chrome_trace(std::string_view text, std::size_t limit = 20);

/// The findings as lines "byte N: text".
std::string findings_text(const std::vector<ChromeFinding>& findings);

}  // namespace dbo
