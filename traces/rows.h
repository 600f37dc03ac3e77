// Rows of a drawn trace: a lane is one row unless its slices overlap in time, then as many as it takes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "traces/trace.h"

namespace dbo {

/// One row of slices that do not overlap.
struct Row {
  std::int32_t rank = 0;
  std::uint8_t lane = 0;
  int spill = 1;                   ///< 1 is the lane itself, 2 is "lane (2)", and so on
  std::vector<std::uint32_t> ops;  ///< indices into Trace::ops, by start
};

/// What of a trace is shown.
struct RowFilter {
  std::int32_t first_layer = -1;        ///< ops of no layer (-1) are shown with layer 0
  std::int32_t last_layer = INT32_MAX;  ///< included
  int max_ranks = 0;                    ///< the first so many ranks; 0: all
  std::int64_t max_slices = 0;          ///< the first so many slices by start; 0: all
};

struct Rows {
  std::vector<Row> rows;                 ///< by rank, lane, spill
  std::vector<std::uint32_t> row_of_op;  ///< by op; kNoRow when it is not shown
  std::int64_t dropped = 0;              ///< slices the filter left out
};
inline constexpr std::uint32_t kNoRow = UINT32_MAX;

/// Rows by rank, lane and start, first fit. Slices that only touch share a row; nested ones do not.
Rows make_rows(const Trace& trace, const RowFilter& filter = {});

/// "comm", "comm (2)".
std::string row_name(const Trace& trace, const Row& row);

}  // namespace dbo
