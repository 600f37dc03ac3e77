#include "traces/timeline_svg.h"

#include <algorithm>
#include <array>
#include <map>

#include "traces/chrome_writer.h"
#include "traces/op_style.h"
#include "traces/rows.h"

namespace dbo {
namespace {

constexpr int kMargin = 24, kLabelWidth = 108, kLaneHeight = 34, kLaneGap = 8, kHeadHeight = 92;
constexpr int kPanelGap = 64, kAxisHeight = 26, kLegendHeight = 40, kLegendLine = 22;

std::string xml(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else if (static_cast<unsigned char>(c) >= 0x20)
      out += c;
  }
  return out;
}

/// A coordinate with two decimals from integers, so that every compiler writes the same digits.
std::string coordinate(std::int64_t hundredths) {
  const std::int64_t rest = hundredths % 100;
  std::string text = std::to_string(hundredths / 100);
  if (rest != 0) text += "." + std::string(rest < 10 ? "0" : "") + std::to_string(rest);
  return text;
}

std::string micros_label(std::int64_t ns, std::int64_t step) {
  if (step % 1'000'000 == 0) return std::to_string(ns / 1'000'000) + " ms";
  if (step % 1000 == 0) return std::to_string(ns / 1000) + " µs";
  return us_text(ns) + " µs";
}

/// 1, 2 or 5 times a power of ten, so that 6 to 14 marks fit into `span`.
std::int64_t tick_step(std::int64_t span) {
  std::int64_t step = 1;
  constexpr std::array<std::int64_t, 3> kFactors = {2, 5, 10};
  std::int64_t decade = 1;
  for (std::size_t i = 0; span / step > 14; ++i) {
    step = decade * kFactors[i % 3];
    if (i % 3 == 2) decade *= 10;
  }
  return step;
}

struct Panel {
  SimTime begin{}, end{};
  int top = 0;
  bool labels = false;
};

class Picture {
 public:
  Picture(const Trace& trace, const SvgOptions& options)
      : trace_(trace), options_(options), rows_(make_rows(trace, {.max_ranks = options.max_ranks})) {}

  std::string draw() {
    SimTime begin{}, end{};
    bool any = false;
    for (const Row& row : rows_.rows)
      for (const std::uint32_t i : row.ops) {
        begin = any ? std::min(begin, trace_.ops[i].start) : trace_.ops[i].start;
        end = any ? std::max(end, trace_.ops[i].end) : trace_.ops[i].end;
        any = true;
      }
    if (!any) end = begin + Ns{1};
    const auto steady = rows_.rows.empty() ? std::nullopt : steady_window(trace_, rows_.rows.front().rank);
    int y = kHeadHeight;
    if (steady) {
      caption(y, "One steady layer (layer " + std::to_string(steady->layer) + "), " +
                     us_text((steady->end - steady->begin).count()) + " µs");
      y = panel({steady->begin, steady->end, y + 14, true}) + kPanelGap;
    }
    caption(y, "Whole step, " + us_text((end - begin).count()) + " µs");
    y = panel({begin, end, y + 14, !steady});
    return finish(legend(y + 24) + kLegendHeight);
  }

 private:
  int plot_left() const { return kMargin + kLabelWidth; }
  int plot_width() const { return options_.width - plot_left() - kMargin; }

  void text(int x, std::int64_t y, const char* cls, std::string_view content) {
    body_ += "<text x=\"" + std::to_string(x) + "\" y=\"" + std::to_string(y) + "\" class=\"" + cls + "\">" +
             xml(content) + "</text>\n";
  }
  void caption(int y, const std::string& content) { text(kMargin, y, "cap", content); }

  std::int64_t to_x(const Panel& panel, SimTime time) const {  // hundredths of a pixel
    const auto span = std::max<std::int64_t>(1, (panel.end - panel.begin).count());
    const auto at = std::clamp<std::int64_t>((time - panel.begin).count(), 0, span);
    const double scale = static_cast<double>(plot_width()) * 100.0 / static_cast<double>(span);
    return plot_left() * 100 + static_cast<std::int64_t>(static_cast<double>(at) * scale);
  }

  int panel(const Panel& panel) {
    int y = panel.top;
    const bool many_ranks = !rows_.rows.empty() && rows_.rows.front().rank != rows_.rows.back().rank;
    for (const Row& row : rows_.rows) {
      std::string name = row_name(trace_, row);
      if (many_ranks) name = "r" + std::to_string(row.rank) + " " + name;
      text(kMargin, y + kLaneHeight / 2 + 5, "lane", name);
      body_ += "<rect x=\"" + std::to_string(plot_left()) + "\" y=\"" + std::to_string(y) + "\" width=\"" +
               std::to_string(plot_width()) + "\" height=\"" + std::to_string(kLaneHeight) + "\" class=\"bg\"/>\n";
      draw_row(panel, row, y);
      y += kLaneHeight + kLaneGap;
    }
    axis(panel, y);
    return y + kAxisHeight;
  }

  void draw_row(const Panel& panel, const Row& row, int y) {
    // Slices narrower than a third of a pixel are merged with the one before of the same colour: thousands stay small.
    std::int64_t left = 0, right = 0;
    std::string_view fill;
    const auto flush = [&] {
      if (right > left)
        body_ += "<rect x=\"" + coordinate(left) + "\" y=\"" + std::to_string(y) + "\" width=\"" +
                 coordinate(std::max<std::int64_t>(30, right - left)) + "\" height=\"" + std::to_string(kLaneHeight) +
                 "\" fill=\"" + std::string(fill) + "\"/>\n";
      right = left = 0;
    };
    for (const std::uint32_t i : row.ops) {
      const TraceOp& op = trace_.ops[i];
      if (op.end <= panel.begin || op.start >= panel.end) continue;
      const std::int64_t from = to_x(panel, op.start), to = to_x(panel, op.end);
      const std::string_view colour = op_colour(op.kind, op.ubatch);
      if (to - from < 400) {
        if (right == 0 || colour != fill || from - right > 33) {
          flush();
          left = from;
          fill = colour;
        }
        right = std::max(right, std::max(to, from + 1));
        continue;
      }
      flush();
      slice(op, from, to, y, panel.labels);
    }
    flush();
  }

  void slice(const TraceOp& op, std::int64_t from, std::int64_t to, int y, bool labelled) {
    const std::string name = slice_name(trace_, op);
    std::string title = name;
    if (op.layer >= 0) title += ", layer " + std::to_string(op.layer);
    title += ": " + us_text((op.end - op.start).count()) + " µs from " + us_text(op.start.time_since_epoch().count());
    if (op.waited.count() > 0) title += ", waited " + us_text(op.waited.count());
    body_ += "<g><title>" + xml(title) + "</title><rect x=\"" + coordinate(from) + "\" y=\"" + std::to_string(y) +
             "\" width=\"" + coordinate(to - from) + "\" height=\"" + std::to_string(kLaneHeight) + "\" fill=\"" +
             std::string(op_colour(op.kind, op.ubatch)) + "\" class=\"op\"/>";
    // About 8 pixels a character at this size; bytes of a subscript (three) count as one.
    std::int64_t characters = 0;
    for (const char c : name) characters += (static_cast<unsigned char>(c) & 0xC0) != 0x80 ? 1 : 0;
    if ((labelled || to - from > 4000) && (to - from) / 100 >= characters * 8 + 4)
      body_ += "<text x=\"" + coordinate((from + to) / 2) + "\" y=\"" + std::to_string(y + kLaneHeight / 2 + 5) +
               "\" class=\"in\">" + xml(name) + "</text>";
    body_ += "</g>\n";
  }

  void axis(const Panel& panel, int y) {
    const std::int64_t step = tick_step((panel.end - panel.begin).count());
    for (std::int64_t at = 0; at <= (panel.end - panel.begin).count(); at += step) {
      const std::int64_t x = to_x(panel, panel.begin + Ns{at});
      body_ += "<path d=\"M" + coordinate(x) + " " + std::to_string(panel.top) + "V" + std::to_string(y) +
               "\" class=\"tick\"/><text x=\"" + coordinate(x) + "\" y=\"" + std::to_string(y + 14) +
               "\" class=\"ax\">" + micros_label(at, step) + "</text>\n";
    }
  }

  /// Returns where its last line begins.
  int legend(int y) {
    int x = kMargin;
    std::array<bool, kOpKinds> seen{};
    for (const Row& row : rows_.rows)
      for (const std::uint32_t i : row.ops) seen[static_cast<std::size_t>(trace_.ops[i].kind)] = true;
    for (std::size_t k = 0; k < seen.size(); ++k) {
      if (!seen[k]) continue;
      const auto kind = static_cast<OpKind>(k);
      const int width = 46 + static_cast<int>(op_name(kind).size()) * 8 + 12;
      if (x + width > options_.width - kMargin) {
        x = kMargin;
        y += kLegendLine;
      }
      for (int ubatch = 0; ubatch < 2; ++ubatch)
        body_ += "<rect x=\"" + std::to_string(x + ubatch * 14) + "\" y=\"" + std::to_string(y) +
                 "\" width=\"14\" height=\"14\" fill=\"" + std::string(op_colour(kind, ubatch)) + "\"/>";
      text(x + 34, y + 12, "key", op_name(kind));
      x += width;
    }
    y += kLegendLine;
    text(kMargin, y + 12, "key", "lighter and darker: even and odd ubatches; subscripts are ubatch numbers");
    return y;
  }

  std::string finish(int height) {
    const std::string w = std::to_string(options_.width), h = std::to_string(height);
    std::string out = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"" + w + "\" height=\"" + h +
                      "\" viewBox=\"0 0 " + w + " " + h + "\" role=\"img\" aria-label=\"" + xml(options_.title) +
                      "\">\n<style>text{font-family:'DejaVu Sans',Helvetica,Arial,sans-serif;fill:#1b1f24}"
                      ".t{font-size:22px;font-weight:600}.s{font-size:15px;fill:#57606a}.cap{font-size:15px;"
                      "font-weight:600}.lane{font-size:13px}.in{font-size:14px;text-anchor:middle;pointer-events:none}"
                      ".ax{font-size:12px;text-anchor:middle;fill:#57606a}.key{font-size:13px}"
                      ".bg{fill:#f3f4f6}.op{stroke:#fff;stroke-width:.6}.tick{stroke:#8c959f;stroke-width:.5;"
                      "stroke-dasharray:2 3}</style>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n";
    // A bold letter is about 0.6 of its size wide; a long title gets smaller letters.
    const auto letters = std::max<std::int64_t>(1, static_cast<std::int64_t>(options_.title.size()));
    const std::int64_t size = std::clamp<std::int64_t>((options_.width - 2 * kMargin) * 10 / (6 * letters), 10, 22);
    out += "<text x=\"" + std::to_string(kMargin) +
           "\" y=\"34\" class=\"t\" style=\"font-size:" + std::to_string(size) + "px\">" + xml(options_.title) +
           "</text>\n";
    out += "<text x=\"" + std::to_string(kMargin) + "\" y=\"58\" class=\"s\">" + xml(options_.subtitle) + "</text>\n";
    return out + body_ + "</svg>\n";
  }

  const Trace& trace_;
  const SvgOptions& options_;
  Rows rows_;
  std::string body_;
};

}  // namespace

std::optional<SteadyWindow> steady_window(const Trace& trace, std::int32_t rank) {
  // First start of each layer's lead ubatch, and which layers hold communication (dense ones have another rhythm).
  struct Layer {
    SimTime start = SimTime::max();
    bool comm = false;
  };
  std::map<std::int32_t, Layer> layers;
  std::int16_t lead = INT16_MAX;
  for (const TraceOp& op : trace.ops)
    if (op.rank == rank && op.layer >= 0 && is_compute(op.kind)) lead = std::min(lead, op.ubatch);
  for (const TraceOp& op : trace.ops) {
    if (op.rank != rank || op.layer < 0) continue;
    Layer& layer = layers[op.layer];
    layer.comm = layer.comm || is_comm(op.kind);
    if (is_compute(op.kind) && op.ubatch == lead) layer.start = std::min(layer.start, op.start);
  }
  std::vector<SteadyWindow> candidates;
  for (auto at = layers.begin(); at != layers.end(); ++at) {
    const auto next = std::next(at);
    if (next == layers.end() || !at->second.comm || !next->second.comm || next->first != at->first + 1) continue;
    if (at->second.start == SimTime::max() || next->second.start == SimTime::max()) continue;
    if (next->second.start > at->second.start) candidates.push_back({at->first, at->second.start, next->second.start});
  }
  if (candidates.empty()) return std::nullopt;
  return candidates[candidates.size() / 2];
}

std::string timeline_svg(const Trace& trace, const SvgOptions& options) {
  return Picture(trace, options).draw();
}

}  // namespace dbo
