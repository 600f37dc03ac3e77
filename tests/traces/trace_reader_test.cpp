#include "traces/trace_reader.h"

#include <doctest/doctest.h>
#include <zlib.h>

#include "sim/base/error.h"
#include "sim/base/files.h"
#include "tests/traces/temp_dir.h"

using namespace dbo;

namespace {

RawTrace read(const std::string& text) {
  return read_raw_trace_text(text, "t.json");
}
RawTrace read_events(const std::string& events) {
  return read("{\"traceEvents\":[" + events + "]}");
}
std::string error_of(const std::string& text) {
  try {
    read(text);
    return "no error";
  } catch (const InputError& error) {
    return error.what();
  }
}
/// A kernel of stream 7; `ts` and `dur` as they stand in the file.
std::string kernel(const std::string& ts, const std::string& dur, const std::string& more = "") {
  return R"({"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":)" + ts + ",\"dur\":" + dur +
         R"(,"args":{"stream":7,"device":0,"correlation":5}})" + more;
}
std::int64_t skipped(const RawTrace& trace, const std::string& reason) {
  const auto at = trace.skipped.find(reason);
  return at == trace.skipped.end() ? 0 : at->second.count;
}

void write_gz(const std::string& path, const std::string& text) {
  gzFile file = gzopen(path.c_str(), "wb");
  gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
  gzclose(file);
}

}  // namespace

TEST_CASE("trace_reader: microseconds become nanoseconds exactly, whatever they are written as") {
  const auto ns = [](std::string_view text) {
    std::int64_t value = -7;
    return parse_micros(text, value) ? value : -7;
  };
  CHECK(ns("0") == 0);
  CHECK(ns("12") == 12000);
  CHECK(ns("12.5") == 12500);
  CHECK(ns("12.345") == 12345);
  CHECK(ns("12.3454") == 12345);
  CHECK(ns("12.3455") == 12346);
  CHECK(ns("12.9999") == 13000);
  CHECK(ns("-3.001") == -3001);
  CHECK(ns(" 42.125 ") == 42125);
  CHECK(ns("1672924880617000.296") == 1672924880617000296);  // a double would be 44 ns off
  CHECK(ns("1.5e3") == 1500000);
  for (const char* bad : {"", "-", "abc", "1.2.3", "NaN", "Infinity", "1e300", "9999999999999999999"})
    CHECK_MESSAGE(ns(bad) == -7, bad);
}

TEST_CASE("trace_reader: array and object form, epoch or not, read the same; times count from the first GPU slice") {
  const std::string events = kernel("1740461679471346", "52") + "," + kernel("1740461679471440", "8.5");
  for (const std::string& text :
       {"[" + events + "]", "{\"traceEvents\":[" + events + "]}",
        "{\"schemaVersion\":1,\"traceEvents\":[" + events + "],\"displayTimeUnit\":\"ms\"}",
        "{\"displayTimeUnit\":\"ns\",\"traceEvents\" : [\n" + events + "\n] }", "\xEF\xBB\xBF[" + events + "]"}) {
    const RawTrace trace = read(text);
    REQUIRE(trace.slices.size() == 2);
    CHECK(trace.slices[0].start_ns == 0);
    CHECK(trace.slices[0].dur_ns == 52000);
    CHECK(trace.slices[1].start_ns == 94000);
    CHECK(trace.slices[1].dur_ns == 8500);
    CHECK(trace.base_ns == 1740461679471346000);
    CHECK_FALSE(trace.truncated);
    CHECK(trace.skipped.empty());
  }
}

TEST_CASE("trace_reader: times and numbers may be text") {
  const RawTrace trace = read_events(
      R"({"ph":"X","cat":"kernel","name":"k","pid":"0","tid":"7","ts":"10.250","dur":"3","args":{"stream":"7","correlation":"9"}})");
  REQUIRE(trace.slices.size() == 1);
  CHECK(trace.base_ns == 10250);
  CHECK(trace.slices[0].dur_ns == 3000);
  CHECK(trace.slices[0].correlation == 9);
  CHECK(trace.rows[trace.slices[0].row].stream == 7);
}

TEST_CASE("trace_reader: a GPU slice is known by its category, by args.stream, or by the name of its thread") {
  CHECK(read_events(kernel("1", "2")).slices.size() == 1);
  CHECK(read_events(R"({"ph":"X","name":"k","pid":0,"tid":3,"ts":1,"dur":2,"args":{"stream":3}})").slices.size() == 1);
  const RawTrace named = read_events(
      R"({"ph":"X","name":"k","pid":0,"tid":3,"ts":1,"dur":2},{"ph":"X","name":"h","pid":1,"tid":9,"ts":1,"dur":2},)"
      R"({"ph":"M","name":"thread_name","pid":0,"tid":3,"args":{"name":"stream 3 "}})");
  REQUIRE(named.slices.size() == 1);
  CHECK(named.names[named.slices[0].name] == "k");
  CHECK(named.rows[named.slices[0].row].thread == "stream 3");  // the trailing blank is Kineto's
  CHECK(named.host_events == 1);
  CHECK(read_events(R"({"ph":"X","cat":"Kernel","name":"k","pid":0,"tid":3,"ts":1,"dur":2})").slices.size() == 1);
}

TEST_CASE("trace_reader: a trace without GPU slices is read as rows of anything, B and E included") {
  const RawTrace trace = read_events(
      R"({"ph":"X","name":"a","pid":"p","tid":"t","ts":5,"dur":2},)"
      R"({"ph":"B","name":"b","pid":"p","tid":"u","ts":10},{"ph":"B","name":"c","pid":"p","tid":"u","ts":11},)"
      R"({"ph":"E","pid":"p","tid":"u","ts":14},{"ph":"E","pid":"p","tid":"u","ts":20},)"
      R"({"ph":"E","pid":"p","tid":"u","ts":30},{"ph":"B","name":"d","pid":"p","tid":"u","ts":31})");
  REQUIRE(trace.slices.size() == 3);
  CHECK(trace.names[trace.slices[1].name] == "c");
  CHECK(trace.slices[1].dur_ns == 3000);
  CHECK(trace.names[trace.slices[2].name] == "b");
  CHECK(trace.slices[2].dur_ns == 10000);
  CHECK(skipped(trace, "end without a beginning") == 1);
  CHECK(skipped(trace, "beginning without an end") == 1);
}

TEST_CASE("trace_reader: the first kernel may lie before the time base; nothing becomes negative") {
  const RawTrace trace = read_events(kernel("-3.5", "1") + "," + kernel("2", "1"));
  CHECK(trace.base_ns == -3500);
  CHECK(trace.slices[0].start_ns == 0);
  CHECK(trace.slices[1].start_ns == 5500);
}

TEST_CASE("trace_reader: kernels may share a correlation, overlap on a row, or have no length") {
  const RawTrace trace = read_events(kernel("0", "10") + "," + kernel("5", "10") + "," + kernel("15", "0"));
  CHECK(trace.slices.size() == 3);
  CHECK(trace.skipped.empty());
}

TEST_CASE("trace_reader: what cannot be used is counted by reason, with its place") {
  const std::string bad = R"({"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,)";
  const std::string events = kernel("1", "2") + "," + bad + R"("dur":2},)" + bad + R"("ts":3},)" + bad +
                             R"("ts":"x","dur":2},)" + bad + R"("ts":3,"dur":-1},)" + bad +
                             R"("ts":3,"dur":604800000001},{},17,)" +
                             R"({"name":"no phase"},{"ph":"b","id":1,"cat":"c","name":"n","ts":1})";
  const RawTrace trace = read_events(events);
  CHECK(trace.slices.size() == 1);
  for (const char* reason : {"event without ts", "slice without dur", "time that is no number",
                             "slice of negative length", "slice longer than seven days", "empty event",
                             "element that is no event", "event without a phase", "event of phase b"})
    CHECK_MESSAGE(skipped(trace, reason) == 1, reason);
  CHECK(trace.skipped.at("event without ts").first_offset == 16 + kernel("1", "2").size() + 1);
}

TEST_CASE("trace_reader: trailing commas, stray commas and missing ones") {
  CHECK(read("[" + kernel("1", "2") + ",]").slices.size() == 1);
  CHECK(read("{\"traceEvents\":[" + kernel("1", "2") + ",{}],}").slices.size() == 1);
  CHECK(read("[," + kernel("1", "2") + ",,\n" + kernel("4", "2") + "]").slices.size() == 2);
  CHECK(read("[" + kernel("1", "2") + "\n" + kernel("4", "2") + "]").slices.size() == 2);
}

TEST_CASE("trace_reader: a cut file keeps what came before the cut and says where it was cut") {
  const std::string one = kernel("1", "2");
  for (const std::string& head : {std::string("["), std::string("{\"traceEvents\":[")}) {
    for (const std::string& tail : {std::string(""), std::string(","), "," + one.substr(0, one.size() / 2),
                                    "," + one.substr(0, 9), "," + one.substr(0, one.size() - 1)}) {
      const RawTrace trace = read(head + one + tail);
      CHECK(trace.slices.size() == 1);
      CHECK(trace.truncated);
      CHECK(trace.truncated_at == head.size() + one.size() + tail.size());
    }
  }
  const RawTrace closed = read("{\"traceEvents\":[" + one + "]");  // only the last brace is missing
  CHECK(closed.slices.size() == 1);
  CHECK(closed.truncated);
}

TEST_CASE("trace_reader: names with quotes, backslashes, newlines and control bytes") {
  const auto name_of = [](const std::string& written) {
    const RawTrace trace = read_events(R"({"ph":"X","cat":"kernel","name":")" + written +
                                       R"(","pid":0,"tid":7,"ts":1,"dur":2},)" + kernel("9", "1"));
    REQUIRE(trace.slices.size() == 2);
    return trace.names[trace.slices[0].name];
  };
  CHECK(name_of("f<\\\"a\\\\b\\\">\\n") == "f<\"a\\b\">\n");
  CHECK(name_of("bare \"quote\" here") == "bare \"quote\" here");
  CHECK(name_of("byte \x01 and \n newline") == "byte \x01 and \n newline");
  CHECK(name_of("C:\\dir\\k") == "C:\\dir\\k");
  CHECK(name_of("") == "(no name)");
}

TEST_CASE("trace_reader: a broken event costs itself, not the trace") {
  const RawTrace trace = read_events(kernel("1", "2") + R"(,{"ph":"X","cat":"kernel" "name":"k"},)" + kernel("5", "2") +
                                     R"(,{"ph":"X","name":"foo, "ph":1},)" + kernel("8", "2"));
  CHECK(trace.slices.size() == 3);
  CHECK(skipped(trace, "event that is no JSON") == 2);
}

TEST_CASE("trace_reader: what is no trace at all is an error with its place") {
  CHECK(error_of("") == "t.json: byte 0: no trace: the file is empty, found the end of the file");
  CHECK(error_of("hello") == "t.json: byte 0: no Chrome trace: expected '{' or '['");
  CHECK(error_of("PK\x03\x04").find("a ZIP archive?") != std::string::npos);
  CHECK(error_of("\x0A\x02xx").find("a Perfetto protobuf?") != std::string::npos);
  CHECK(error_of("{\"a\":1}") == "t.json: no traceEvents: this is JSON, but no Chrome trace");
  CHECK(error_of("{\"a\":").find("byte 5") != std::string::npos);
  CHECK(error_of("[").find("byte 1: the file ends before its first event") != std::string::npos);
  CHECK(error_of("[]") == "no error");
  CHECK_THROWS_WITH_AS(read_raw_trace("/nowhere/t.json"), "/nowhere/t.json: cannot open: No such file or directory",
                       InputError);
}

TEST_CASE("trace_reader: plain and gzip files read the same; a cut gzip file is a cut file") {
  const dbo::testing::TempDir dir;
  std::string text = "{\"traceEvents\":[";
  for (int i = 0; i < 20000; ++i) text += (i > 0 ? "," : "") + kernel(std::to_string(i * 10), "3");
  text += "]}";
  write_file(dir.file("a.json"), text);
  write_gz(dir.file("a.json.gz"), text);
  double last = 0;
  ReadOptions options;
  options.progress = [&](double share) { last = share; };
  CHECK(read_raw_trace(dir.file("a.json"), options).slices.size() == 20000);
  CHECK(last > 0);
  const RawTrace packed = read_raw_trace(dir.file("a.json.gz"));
  CHECK(packed.slices.size() == 20000);
  CHECK(packed.bytes == text.size());
  const std::string gz = read_file(dir.file("a.json.gz"));
  write_file(dir.file("cut.json.gz"), gz.substr(0, gz.size() / 2));
  const RawTrace cut = read_raw_trace(dir.file("cut.json.gz"));
  CHECK(cut.truncated);
  CHECK(cut.slices.size() > 5000);
  CHECK(cut.slices.size() < 20000);
  std::string broken = gz;
  for (std::size_t i = gz.size() / 2; i < gz.size() / 2 + 64; ++i) broken[i] = static_cast<char>(i * 37);
  write_file(dir.file("broken.json.gz"), broken);
  CHECK_THROWS_AS(read_raw_trace(dir.file("broken.json.gz")), InputError);
}

TEST_CASE("trace_reader: calls, synchronisations and ranges are kept, queries and host operators are not") {
  const RawTrace trace = read_events(
      R"({"ph":"X","cat":"cuda_runtime","name":"cudaLaunchKernel","pid":1,"tid":1,"ts":1,"dur":2,"args":{"correlation":5}},)"
      R"({"ph":"X","cat":"cuda_runtime","name":"cudaEventQuery","pid":1,"tid":1,"ts":1,"dur":2,"args":{"correlation":6}},)"
      R"({"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":1,"dur":2},)"
      R"({"ph":"X","cat":"user_annotation","name":"attn F","pid":1,"tid":1,"ts":1,"dur":2},)"
      R"({"ph":"X","cat":"Trace","name":"PyTorch Profiler","pid":"Spans","tid":"x","ts":0,"dur":9
},)"
      R"({"ph":"i","name":"Record Window End","pid":"","tid":"","ts":9,"s":"g"},)"
      R"({"ph":"X","cat":"cuda_sync","name":"Stream Wait Event","pid":0,"tid":24,"ts":3,"dur":2,)"
      R"("args":{"wait_on_stream":20,"wait_on_cuda_event_record_corr_id":1385,"stream":24,"correlation":1389,"device":0}},)" +
      kernel("4", "1"));
  CHECK(trace.slices.size() == 1);
  REQUIRE(trace.calls.size() == 1);
  CHECK(trace.calls[0].correlation == 5);
  CHECK(trace.calls[0].start_ns == -3000);  // relative to the first GPU slice
  REQUIRE(trace.syncs.size() == 1);
  CHECK(trace.syncs[0].stream == 24);
  CHECK(trace.syncs[0].other_stream == 20);
  CHECK(trace.syncs[0].record_correlation == 1385);
  CHECK(trace.ranges.size() == 1);
  CHECK(trace.host_events == 3);
  CHECK(skipped(trace, "slice of the profiler itself") == 1);
}
