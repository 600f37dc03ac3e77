// Gain over batch size, as a picture: logarithmic batches, a line at 1.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tools/summary.h"
#include "tools/tune_output.h"

namespace dbo {
namespace {

constexpr double kWidth = 760, kHeight = 420, kLeft = 64, kRight = 220, kTop = 56, kBottom = 56;

struct Line {
  std::string name, colour;
  std::vector<Gain> gains;
};

class GainPlot {
 public:
  GainPlot(std::string title, std::vector<Line> lines) : title_(std::move(title)), lines_(std::move(lines)) {
    for (const Line& line : lines_) {
      for (const Gain& g : line.gains) {
        if (!g.both()) continue;
        least_tokens_ = std::min(least_tokens_, g.tokens);
        most_tokens_ = std::max(most_tokens_, g.tokens);
        least_ = std::min(least_, g.ratio());
        most_ = std::max(most_, g.ratio());
      }
    }
    least_ = std::floor((least_ - 0.02) * 10) / 10;
    most_ = std::ceil((most_ + 0.02) * 10) / 10;
  }

  std::string draw() {
    text_ = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
        "height=\"{1:.0f}\" "
        "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        kWidth, kHeight);
    text_ += fmt::format("<text x=\"{:.0f}\" y=\"20\" font-size=\"14\">{}</text>\n", kLeft, escaped(title_));
    text_ += fmt::format(
        "<text x=\"{:.0f}\" y=\"38\" fill=\"#555\">un-split step over split step, by tokens a rank</text>\n", kLeft);
    if (least_tokens_ > most_tokens_) {
      text_ += fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\">no batch can run both ways</text>\n</svg>\n", kLeft,
                           kHeight / 2);
      return text_;
    }
    draw_axes();
    for (std::size_t i = 0; i < lines_.size(); ++i) draw_line(lines_[i], i);
    return text_ + "</svg>\n";
  }

 private:
  static std::string escaped(const std::string& text) {
    std::string out;
    for (const char c : text) out += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
    return out;
  }
  double x(std::int64_t tokens) const {
    const double low = std::log2(static_cast<double>(least_tokens_)),
                 high = std::log2(static_cast<double>(most_tokens_));
    const double share = high > low ? (std::log2(static_cast<double>(tokens)) - low) / (high - low) : 0.5;
    return kLeft + share * (kWidth - kLeft - kRight);
  }
  double y(double gain) const {
    return kHeight - kBottom - (gain - least_) / (most_ - least_) * (kHeight - kTop - kBottom);
  }

  void draw_axes() {
    const double right = kWidth - kRight;
    const double step = most_ - least_ > 1 ? 0.2 : 0.1;
    for (double gain = least_; gain <= most_ + step / 2; gain += step) {
      text_ += fmt::format("<line x1=\"{:.0f}\" y1=\"{:.1f}\" x2=\"{:.0f}\" y2=\"{:.1f}\" stroke=\"#e4e4e4\"/>\n",
                           kLeft, y(gain), right, y(gain));
      text_ += fmt::format("<text x=\"{:.0f}\" y=\"{:.1f}\" text-anchor=\"end\">{:.1f}x</text>\n", kLeft - 6,
                           y(gain) + 4, gain);
    }
    if (least_ <= 1 && most_ >= 1)
      text_ += fmt::format("<line x1=\"{:.0f}\" y1=\"{:.1f}\" x2=\"{:.0f}\" y2=\"{:.1f}\" stroke=\"#333\"/>\n", kLeft,
                           y(1), right, y(1));
    double free_from = -100;
    for (std::int64_t tokens = 1; tokens <= most_tokens_; tokens *= 2) {
      if (tokens < least_tokens_ || x(tokens) < free_from) continue;
      free_from = x(tokens) + 40;
      text_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.0f}\" text-anchor=\"middle\">{}</text>\n", x(tokens),
                           kHeight - kBottom + 18, tokens);
    }
    text_ += fmt::format(
        "<text x=\"{:.0f}\" y=\"{:.0f}\" text-anchor=\"middle\" fill=\"#555\">tokens a data-parallel rank</text>\n",
        (kLeft + right) / 2, kHeight - 14);
  }

  void draw_line(const Line& line, std::size_t index) {
    std::string points;
    for (const Gain& g : line.gains) {
      if (!g.both()) continue;
      points += fmt::format("{}{:.1f},{:.1f}", points.empty() ? "" : " ", x(g.tokens), y(g.ratio()));
      text_ += fmt::format(
          "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"><title>{} tokens: {:.3f}x</title></circle>\n",
          x(g.tokens), y(g.ratio()), line.colour, g.tokens, g.ratio());
    }
    text_ +=
        fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n", points, line.colour);
    const double at = kTop + 18 * static_cast<double>(index);
    text_ += fmt::format("<rect x=\"{:.0f}\" y=\"{:.1f}\" width=\"10\" height=\"10\" fill=\"{}\"/>\n",
                         kWidth - kRight + 12, at, line.colour);
    text_ +=
        fmt::format("<text x=\"{:.0f}\" y=\"{:.1f}\">{}</text>\n", kWidth - kRight + 28, at + 9, escaped(line.name));
  }

  std::string title_, text_;
  std::vector<Line> lines_;
  std::int64_t least_tokens_ = INT64_MAX, most_tokens_ = 0;
  double least_ = 1, most_ = 1;
};

}  // namespace

std::string tune_svg(const TuneOutput& out) {
  std::vector<Line> lines{{"best split, best un-split", "#1f5fa8", out.report.gains}};
  constexpr const char* kColours[] = {"#c2571a", "#3b8f4c", "#8a4fa3", "#b3a01c"};
  std::size_t colour = 0;
  const auto phase = out.config.workload.uniform ? out.config.workload.uniform->phase : Phase::Decode;
  for (const Advice& a : out.report.advice)
    for (const Crossover& c : a.crossovers)
      if (c.phase == phase && a.setting)
        lines.push_back({a.server + ": " + c.setting.schedule + " on, off", kColours[colour++ % 4], c.gains});
  // What is varied does not belong in the title.
  const std::string title = headline(out.config);
  return GainPlot(title.substr(0, title.rfind("; ")), std::move(lines)).draw();
}

}  // namespace dbo
