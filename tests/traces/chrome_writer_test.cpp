#include "traces/chrome_writer.h"

#include <doctest/doctest.h>
#include <zlib.h>

#include "sim/base/files.h"
#include "sim/base/json.h"
#include "tests/traces/temp_dir.h"
#include "tests/traces/trace_builder.h"
#include "traces/chrome_check.h"

using namespace dbo;
using dbo::testing::TraceBuilder;

namespace {

std::vector<std::string> lines_with(const std::string& text, std::string_view part) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at);
    const std::string line = text.substr(at, end - at);
    if (line.find(part) != std::string::npos) lines.push_back(line);
    if (end == std::string::npos) break;
    at = end + 1;
  }
  return lines;
}

}  // namespace

TEST_CASE("chrome_writer: a slice carries exact times, its place and what it joins by") {
  TraceBuilder builder;
  TraceOp& op = builder.at_index(builder.op(OpKind::DRecv, 1, 3, 1'000'001, 1'002'500, 2));
  op.plan_op = 7;
  op.waited = Ns{1200};
  op.bytes = 59136;
  op.sms = 24;
  builder.trace().metadata.set("plan_hash", "0123456789abcdef");
  const std::string text = chrome_trace_text(builder.trace());
  CHECK(text ==
        "{\"displayTimeUnit\":\"ns\",\"metadata\":{\"plan_hash\":\"0123456789abcdef\"},\n\"traceEvents\":[\n"
        "{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":3,\"tid\":0,\"args\":{\"name\":\"rank 2\"}},\n"
        "{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":3,\"tid\":0,\"args\":{\"sort_index\":2}},\n"
        "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":3,\"tid\":1,\"args\":{\"name\":\"compute\"}},\n"
        "{\"ph\":\"M\",\"name\":\"thread_sort_index\",\"pid\":3,\"tid\":1,\"args\":{\"sort_index\":1}},\n"
        "{\"ph\":\"X\",\"name\":\"D₁.recv\",\"cat\":\"receive\",\"pid\":3,\"tid\":1,\"ts\":1000.001,\"dur\":2.499,"
        "\"args\":{\"op\":\"D.recv\",\"ubatch\":1,\"layer\":3,\"rank\":2,\"lane\":\"compute\",\"tokens\":64,"
        "\"bytes\":59136,\"sms\":24,\"plan_op\":7,\"waited_ns\":1200}}\n]}\n");
  CHECK(findings_text(check_chrome_trace(text)) == "");
  CHECK(builder.trace().plan_hash() == "0123456789abcdef");
}

TEST_CASE("chrome_writer: slices that overlap on a lane spill to rows of their own, touching ones do not") {
  // compute    |--0..10--|--10..20--|       |-30..31-|
  //                 |--5..15--|
  //                   |-7..12-|
  TraceBuilder builder;
  builder.op(OpKind::A0, 0, 0, 0, 10);
  builder.op(OpKind::A1, 0, 0, 5, 15);
  builder.op(OpKind::S, 0, 0, 7, 12);
  builder.op(OpKind::MLP, 0, 0, 10, 20);
  builder.op(OpKind::FFN, 0, 0, 30, 31);
  const std::string text = chrome_trace_text(builder.trace());
  CHECK(findings_text(check_chrome_trace(text)) == "");
  CHECK(lines_with(text, "\"name\":\"compute (2)\"").size() == 1);
  CHECK(lines_with(text, "\"name\":\"compute (3)\"").size() == 1);
  CHECK(lines_with(text, "\"op\":\"MLP\"").at(0).find("\"tid\":1,") != std::string::npos);
  CHECK(lines_with(text, "\"op\":\"A1\"").at(0).find("\"tid\":2,") != std::string::npos);
  CHECK(lines_with(text, "\"op\":\"S\"").at(0).find("\"tid\":3,") != std::string::npos);
  CHECK(lines_with(text, "\"op\":\"FFN\"").at(0).find("\"tid\":1,") != std::string::npos);
}

TEST_CASE("chrome_writer: many one-nanosecond overlaps lose no slice") {
  TraceBuilder builder;
  for (int i = 0; i < 2000; ++i) builder.foreign("k" + std::to_string(i % 7), i * 10, i * 10 + 11);
  const std::string text = chrome_trace_text(builder.trace());
  CHECK(findings_text(check_chrome_trace(text)) == "");
  CHECK(lines_with(text, "\"ph\":\"X\"").size() == 2000);
}

TEST_CASE("chrome_writer: every arrow has its own number and both ends inside their slices") {
  TraceBuilder builder;
  const auto send = builder.op(OpKind::DSend, 0, 0, 0, 10);
  const auto late = builder.op(OpKind::DRecv, 0, 0, 50, 60);
  const auto waiting = builder.op(OpKind::DRecv, 0, 0, 4, 60, 1);  // reached its lane's head before the send was over
  const auto tiny = builder.op(OpKind::DRecv, 1, 0, 2, 3, 2);      // skewed clock: ended before the send was over
  const auto past = builder.op(OpKind::DSend, 1, 0, 70, 80);
  for (const auto to : {late, waiting, tiny}) builder.flow(send, to, TraceFlow::Kind::Data);
  builder.flow(past, late, TraceFlow::Kind::Data);  // cannot be drawn forward in time
  const std::string text = chrome_trace_text(builder.trace());
  CHECK(findings_text(check_chrome_trace(text)) == "");
  const auto starts = lines_with(text, "\"ph\":\"s\""), ends = lines_with(text, "\"ph\":\"f\"");
  REQUIRE(starts.size() == 3);
  CHECK(starts[0].find("\"id\":1,\"pid\":1,\"tid\":1,\"ts\":0.009}") != std::string::npos);
  CHECK(
      ends[0].find("\"bp\":\"e\",\"cat\":\"data\",\"name\":\"transfer\",\"id\":1,\"pid\":1,\"tid\":1,\"ts\":0.050}") !=
      std::string::npos);
  CHECK(starts[1].find("\"ts\":0.009}") != std::string::npos);
  CHECK(ends[1].find("\"ts\":0.009}") != std::string::npos);
  CHECK(starts[2].find("\"ts\":0.002}") != std::string::npos);
  CHECK(ends[2].find("\"ts\":0.002}") != std::string::npos);
  CHECK(text.find("\"dropped_flows\":1") != std::string::npos);
}

TEST_CASE("chrome_writer: a start before the time base shifts the whole trace, and the file says so") {
  TraceBuilder builder;
  builder.op(OpKind::A0, 0, 0, -1500, 20);
  builder.op(OpKind::A1, 0, 0, 20, 40);
  const std::string text = chrome_trace_text(builder.trace());
  CHECK(findings_text(check_chrome_trace(text)) == "");
  CHECK(text.find("\"shifted_ns\":1500") != std::string::npos);
  CHECK(lines_with(text, "\"op\":\"A1\"").at(0).find("\"ts\":1.520,\"dur\":0.020") != std::string::npos);
}

TEST_CASE("chrome_writer: layers, ranks and slices can be capped, and what is left out is counted") {
  TraceBuilder builder;
  for (int rank = 0; rank < 4; ++rank)
    for (int layer = 0; layer < 10; ++layer) builder.op(OpKind::A0, 0, layer, layer * 100, layer * 100 + 50, rank);
  const auto slices = [&](const RowFilter& filter, const char* dropped) {
    ChromeOptions options;
    options.filter = filter;
    const std::string text = chrome_trace_text(builder.trace(), options);
    CHECK(findings_text(check_chrome_trace(text)) == "");
    CHECK(text.find(dropped) != std::string::npos);
    return lines_with(text, "\"ph\":\"X\"");
  };
  CHECK(slices({.first_layer = 2, .last_layer = 4}, "\"dropped_slices\":28").size() == 12);
  CHECK(slices({.max_ranks = 1}, "\"dropped_slices\":30").size() == 10);
  const auto first = slices({.max_slices = 6}, "\"dropped_slices\":34");
  REQUIRE(first.size() == 6);  // the four ranks of layer 0, then ranks 0 and 1 of layer 1, written by rank
  for (const std::size_t i : {1, 3}) CHECK_MESSAGE(first[i].find("\"ts\":0.100,") != std::string::npos, first[i]);
  for (const std::size_t i : {0, 2, 4, 5}) CHECK_MESSAGE(first[i].find("\"ts\":0.000,") != std::string::npos, first[i]);
}

TEST_CASE("chrome_writer: counters and names that need escaping") {
  TraceBuilder builder;
  builder.foreign("void k<\"a\\b\">\n\x01", 0, 5);
  builder.trace().counters.push_back({"SMs in use", 0, {{at(0), 132}, {at(1500), 0}}});
  builder.trace().counters.push_back({"SMs in use", 9, {{at(0), 1}}});  // a rank without slices has no process
  const std::string text = chrome_trace_text(builder.trace());
  CHECK(findings_text(check_chrome_trace(text)) == "");
  const auto counters = lines_with(text, "\"ph\":\"C\"");
  REQUIRE(counters.size() == 2);
  CHECK(counters[1] == "{\"ph\":\"C\",\"name\":\"SMs in use\",\"pid\":1,\"ts\":1.500,\"args\":{\"value\":0}}");
  CHECK(text.find("void k<\\\"a\\\\b\\\">\\n\\u0001") != std::string::npos);
}

TEST_CASE("chrome_writer: a file name ending in .gz is compressed, and an empty trace is still a trace") {
  const std::string text = chrome_trace_text(Trace{});
  CHECK(findings_text(check_chrome_trace(text)) == "");
  CHECK(parse_json(text, "t").find("traceEvents")->items().empty());
  const dbo::testing::TempDir dir;
  const std::string path = dir.file("t.json.gz");
  write_chrome_trace(path, Trace{});
  CHECK(read_file(path).substr(0, 2) == "\x1f\x8b");
  gzFile file = gzopen(path.c_str(), "rb");
  std::string back(text.size() + 10, '\0');
  back.resize(static_cast<std::size_t>(gzread(file, back.data(), static_cast<unsigned>(back.size()))));
  gzclose(file);
  CHECK(back == text);
}
