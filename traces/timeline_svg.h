// A trace as a picture for a slide: the lanes of a rank over the whole step, and one steady layer enlarged, with op
// names and ubatch subscripts.
#pragma once

#include <optional>
#include <string>

#include "traces/trace.h"

namespace dbo {

struct SvgOptions {
  std::string title;     ///< first line
  std::string subtitle;  ///< second line, for example "step 1.850 ms, 1.31x against un-split"
  int max_ranks = 2;     ///< the first so many ranks are drawn
  int width = 1600;      ///< pixels
};

/// An SVG document. Layer boundaries are taken from the trace; of foreign traces without layers only the whole is
/// drawn.
std::string timeline_svg(const Trace& trace, const SvgOptions& options = {});

/// One period of the schedule in the middle of the step: from the first compute op of the lowest ubatch of one layer to
/// that of the next layer of the same kind. Nothing when the trace has no two such layers.
struct SteadyWindow {
  std::int32_t layer = 0;
  SimTime begin{}, end{};
};
std::optional<SteadyWindow> steady_window(const Trace& trace, std::int32_t rank);

}  // namespace dbo
