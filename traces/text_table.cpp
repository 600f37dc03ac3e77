#include "traces/text_table.h"

#include <algorithm>
#include <cmath>

namespace dbo {
namespace {

std::size_t width(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

/// Rounded to `step` ns, halves up.
std::int64_t rounded(Ns time, std::int64_t step) {
  const std::int64_t ns = time.count();
  return ns >= 0 ? (ns + step / 2) / step : -((-ns + step / 2) / step);
}

std::string decimal(std::int64_t value, int decimals) {
  std::int64_t scale = 1;
  for (int i = 0; i < decimals; ++i) scale *= 10;
  const std::int64_t size = value < 0 ? -value : value;
  if (decimals == 0) return std::to_string(value);
  std::string fraction = std::to_string(size % scale);
  fraction.insert(0, static_cast<std::size_t>(decimals) - fraction.size(), '0');
  return (value < 0 ? "-" : "") + std::to_string(size / scale) + "." + fraction;
}

}  // namespace

std::string TextTable::text(int indent) const {
  std::vector<std::size_t> widths;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], width(row[c]));
  }
  std::string out;
  for (const auto& row : rows_) {
    std::string line(static_cast<std::size_t>(indent), ' ');
    for (std::size_t c = 0; c < row.size(); ++c) {
      const std::string fill(widths[c] - width(row[c]), ' ');
      line += (c > 0 ? "  " : "") +
              (c == 0 || (words_last_ && c + 1 == rows_.front().size()) ? row[c] + fill : fill + row[c]);
    }
    while (!line.empty() && line.back() == ' ') line.pop_back();
    out += line + "\n";
  }
  return out;
}

std::string grouped(std::int64_t number) {
  std::string digits = std::to_string(number < 0 ? -number : number);
  for (std::size_t at = digits.size(); at > 3;) digits.insert(at -= 3, ",");
  return (number < 0 ? "-" : "") + digits;
}

std::string ms_text(Ns time) {
  return decimal(rounded(time, 1000), 3) + " ms";
}

std::string us_short(Ns time) {
  return decimal(rounded(time, 100), 1);
}

std::string percent_text(std::optional<double> percent) {
  return percent ? fixed_text(*percent, 2) + " %" : "-";
}

std::string bytes_text(std::uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1000 && unit < 4; ++unit) value /= 1000;
  return fixed_text(value, unit == 0 ? 0 : 2) + " " + kUnits[unit];
}

std::string fixed_text(double value, int decimals) {
  double scale = 1;
  for (int i = 0; i < decimals; ++i) scale *= 10;
  if (!(std::abs(value) * scale < 9e15)) return "-";
  return decimal(static_cast<std::int64_t>(std::floor(value * scale + 0.5)), decimals);
}

}  // namespace dbo
