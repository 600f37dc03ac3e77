// The words and units of plan format 1, which its writer and its reader share.
#pragma once

#include <string_view>
#include <vector>

namespace dbo::plan_words {

inline const std::vector<std::string_view> kExecutions = {"eager", "graph"};
inline const std::vector<std::string_view> kSmControls = {"limit", "green-context", "none"};
inline const std::vector<std::string_view> kPools = {"compute", "comm", "all", "none"};
inline const std::vector<std::string_view> kSlotBys = {"ubatch", "call"};
inline const std::vector<std::string_view> kRoutings = {"balanced", "uniform", "zipf", "table"};
inline const std::vector<std::string_view> kVerbs = {"launch",   "record",    "wait", "yield",  "hook",
                                                     "run_hook", "host_wait", "exit", "repeat", "block"};
/// Hashes are taken over integers only: shares and exponents are stored in billionths.
inline constexpr double kShareUnit = 1e9;

}  // namespace dbo::plan_words
