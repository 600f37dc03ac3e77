#include "traces/timeline_svg.h"

#include <doctest/doctest.h>

#include "tests/traces/trace_builder.h"

using namespace dbo;
using dbo::testing::TraceBuilder;

namespace {

/// The steady state of a low-latency schedule: period 400, as in vLLM's document.
void add_layers(TraceBuilder& builder, int layers) {
  for (int layer = 0; layer < layers; ++layer) {
    const std::int64_t t = layer * 400000;
    builder.op(OpKind::A1, 0, layer, t, t + 100000);
    builder.op(OpKind::A1, 1, layer, t + 100000, t + 200000);
    builder.op(OpKind::DWire, 0, layer, t + 100000, t + 160000);
    builder.op(OpKind::MLP, 0, layer, t + 200000, t + 280000);
    builder.op(OpKind::MLP, 1, layer, t + 300000, t + 380000);
  }
}

std::size_t count(const std::string& text, std::string_view part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

}  // namespace

TEST_CASE("timeline_svg: the steady window is one period of a middle layer with communication") {
  TraceBuilder builder;
  add_layers(builder, 5);
  const auto window = steady_window(builder.trace(), 0);
  REQUIRE(window);
  CHECK(window->layer == 2);
  CHECK(window->begin == at(800000));
  CHECK(window->end == at(1200000));
  CHECK_FALSE(steady_window(builder.trace(), 1));
  TraceBuilder single;
  add_layers(single, 1);
  CHECK_FALSE(steady_window(single.trace(), 0));
}

TEST_CASE("timeline_svg: ops carry names with subscripts, lanes their names, times their unit") {
  TraceBuilder builder;
  add_layers(builder, 5);
  const std::string svg = timeline_svg(builder.trace(), {.title = "a & b <1>", .subtitle = "s"});
  CHECK(svg.substr(0, 5) == "<svg ");
  CHECK(svg.find("a &amp; b &lt;1&gt;") != std::string::npos);
  for (const char* part : {">A1₀</text>", ">A1₁</text>", ">MLP₁</text>", ">D₀.wire</text>", ">compute</text>",
                           ">wire</text>", "One steady layer (layer 2), 400.000 µs", "Whole step, 1980.000 µs"})
    CHECK_MESSAGE(svg.find(part) != std::string::npos, part);
  CHECK(count(svg, "<g>") == count(svg, "</g>"));
}

TEST_CASE("timeline_svg: tens of thousands of narrow slices stay a small picture") {
  TraceBuilder builder;
  for (int i = 0; i < 50000; ++i) builder.foreign("k", i * 10, i * 10 + 9);
  CHECK(timeline_svg(builder.trace()).size() < 400000);
  CHECK(timeline_svg(Trace{}).find("</svg>") != std::string::npos);
}

TEST_CASE("timeline_svg: nothing written is wider than the picture") {
  // Every kind of op, and a title as long as a config makes it: letters of 13 pixels are at most 9 wide.
  TraceBuilder builder;
  for (std::size_t k = 0; k < kOpKinds; ++k) {
    const auto start = static_cast<std::int64_t>(k) * 100;
    builder.op(static_cast<OpKind>(k), 0, 0, start, start + 100);
  }
  for (const int width : {800, 1600}) {
    SvgOptions options;
    options.title = std::string(110, 'w');
    options.width = width;
    const std::string svg = timeline_svg(builder.trace(), options);
    std::size_t keys = 0;
    for (std::size_t at = 0; (at = svg.find("<text x=\"", at)) != std::string::npos;) {
      const std::size_t open = svg.find('>', at), end = svg.find("</text>", at);
      const std::string head = svg.substr(at, open - at);
      const double x = std::stod(head.substr(9)), letters = static_cast<double>(end - open - 1);
      if (head.find("class=\"key\"") != std::string::npos) {
        ++keys;
        CHECK(x + letters * 9 <= width);
      }
      if (const std::size_t size = head.find("font-size:"); size != std::string::npos)
        CHECK(x + letters * std::stod(head.substr(size + 10)) * 0.6 <= width);
      at = end;
    }
    CHECK(keys == kOpKinds + 1);
  }
}
