#include "tools/decision_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace dbo {
namespace {

std::string range_text(Range range) {
  return fmt::format("[{}, {})", range.begin, range.end);
}

std::string slice_text(const UbatchSlice& slice) {
  if (slice.padded_tokens.size() == 0) return "-";
  const std::int64_t padding = slice.padded_tokens.size() - slice.tokens.size();
  std::string text = slice.empty() ? "empty" : range_text(slice.tokens);
  if (padding > 0) text += fmt::format(" + {} padding", padding);
  return slice.empty() ? text : text + fmt::format(", requests {}", range_text(slice.requests));
}

/// A line of the table: what the ranks sent, and their ubatches.
std::vector<std::string> cells_of(const Decision& decision, std::size_t rank) {
  std::vector<std::string> cells;
  for (const VoteRow& row : decision.vote_rows) cells.push_back(std::to_string(row.values[rank]));
  for (const UbatchSlice& slice : decision.ranks[rank].ubatches) cells.push_back(slice_text(slice));
  return cells;
}

std::vector<std::vector<std::string>> rows_of(const Decision& decision) {
  std::vector<std::vector<std::string>> rows(1, {"rank"});
  for (const VoteRow& row : decision.vote_rows) rows[0].emplace_back(row.name);
  for (int u = 0; u < decision.ubatches; ++u) rows[0].push_back(decision.split ? fmt::format("ubatch {}", u) : "batch");
  constexpr std::size_t kMost = 40;
  for (std::size_t first = 0; first < decision.ranks.size();) {
    std::vector<std::string> cells = cells_of(decision, first);
    std::size_t end = first + 1;
    while (end < decision.ranks.size() && cells_of(decision, end) == cells) ++end;
    if (rows.size() > kMost) {
      rows.push_back({fmt::format("... and {} more ranks (all with --json)", decision.ranks.size() - first)});
      break;
    }
    cells.insert(cells.begin(), end == first + 1 ? std::to_string(first) : fmt::format("{}-{}", first, end - 1));
    rows.push_back(std::move(cells));
    first = end;
  }
  return rows;
}

std::string aligned(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths(rows[0].size(), 0);
  for (const auto& row : rows)
    for (std::size_t i = 0; i < row.size() && row.size() == widths.size(); ++i)
      widths[i] = std::max(widths[i], row[i].size());
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) line += fmt::format("{:<{}}  ", row[i], widths[i]);
    out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return out;
}

std::string sizes_line(const GraphChoice& graph) {
  const auto list = [](const std::vector<std::int64_t>& sizes) {
    std::string text;
    for (const std::int64_t size : sizes) text += (text.empty() ? "" : " ") + std::to_string(size);
    return text.empty() ? std::string("none") : text;
  };
  if (graph.unsplit_sizes.empty() && graph.ubatched_sizes.empty()) return {};
  return fmt::format("captured  one batch: {}; ubatches: {}\n", list(graph.unsplit_sizes), list(graph.ubatched_sizes));
}

}  // namespace

std::string decision_table(const Config& config, const Decision& decision) {
  std::string out = decision.split ? fmt::format("decision  split into {} ubatches\n", decision.ubatches)
                                   : fmt::format("decision  not split ({})\n", reason_name(decision.reason));
  out += fmt::format("why       {}\n", decision.reason_text);
  out += fmt::format("rules     {}, {}\n", coordination_name(config.overlap.coordination),
                     config.overlap.notation ? "schedule in notation" : config.overlap.schedule);
  out += fmt::format("padded    {}\n", decision.padded_tokens ? fmt::format("{} tokens a rank", *decision.padded_tokens)
                                                              : "no: every rank keeps its size");
  out += fmt::format("graph     {}{}: {}\n", graph_mode_name(decision.graph.mode),
                     decision.graph.size ? fmt::format(" of {} tokens", *decision.graph.size) : "", decision.graph.why);
  out += sizes_line(decision.graph);
  out += fmt::format("SMs       {} comm, {} compute, {} idle\n\n", decision.sms.comm, decision.sms.compute,
                     decision.sms.idle);
  return out + aligned(rows_of(decision));
}

}  // namespace dbo
