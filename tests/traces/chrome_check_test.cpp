#include "traces/chrome_check.h"

#include <doctest/doctest.h>

using namespace dbo;

namespace {

const std::string kHead = R"({"displayTimeUnit":"ns","metadata":{},"traceEvents":[)";
const std::string kNames = R"({"ph":"M","name":"process_name","pid":1,"tid":0,"args":{"name":"rank 0"}},)"
                           R"({"ph":"M","name":"process_sort_index","pid":1,"tid":0,"args":{"sort_index":0}},)"
                           R"({"ph":"M","name":"thread_name","pid":1,"tid":1,"args":{"name":"compute"}},)"
                           R"({"ph":"M","name":"thread_sort_index","pid":1,"tid":1,"args":{"sort_index":1}},)";

std::string slice(const std::string& ts, const std::string& dur, const std::string& args = "{}") {
  return R"({"ph":"X","name":"A0","cat":"compute","pid":1,"tid":1,"ts":)" + ts + ",\"dur\":" + dur +
         ",\"args\":" + args + "}";
}
std::string arrow(const char* phase, const std::string& id, const std::string& ts, const char* more = "") {
  return std::string(R"({"ph":")") + phase + R"(","cat":"event","name":"wait","pid":1,"tid":1,"id":)" + id +
         ",\"ts\":" + ts + more + "}";
}
std::string check(const std::string& events) {
  return findings_text(check_chrome_trace(kHead + kNames + events + "]}"));
}
bool says(const std::string& events, std::string_view what) {
  return check(events).find(what) != std::string::npos;
}

}  // namespace

TEST_CASE("chrome_check: a sound file has no findings") {
  CHECK(check(slice("0.000", "10.000") + "," + slice("10.000", "0.001") + "," + arrow("s", "1", "9.999") + "," +
              arrow("f", "1", "10.000", ",\"bp\":\"e\"")) == "");
  CHECK(check(slice("0.000", "10.000") + "," + slice("2.000", "8.000")) == "");  // nested
}

TEST_CASE("chrome_check: the container") {
  const auto whole = [](const std::string& text) { return findings_text(check_chrome_trace(text)); };
  CHECK(whole("[]").find("must begin with {\"") != std::string::npos);
  CHECK(whole(R"({"traceEvents":[],"metadata":{},"displayTimeUnit":"ms"})").find("must be \"ns\"") !=
        std::string::npos);
  CHECK(whole(R"({"traceEvents":[],"displayTimeUnit":"ns"})").find("no top-level metadata") != std::string::npos);
  CHECK(whole(R"({"displayTimeUnit":"ns","metadata":{}})").find("no traceEvents") != std::string::npos);
  CHECK(whole(kHead + "]} x").find("text behind") != std::string::npos);
  CHECK(whole(kHead).find("end of the file") != std::string::npos);
  CHECK(whole(kHead + kNames + "]}").find("not strict JSON") != std::string::npos);  // trailing comma
}

TEST_CASE("chrome_check: times are microseconds with three decimals") {
  for (const char* bad : {"1", "1.5", "1.0000", "-1.000", "1e3", "\"1.000\""})
    CHECK(says(slice(bad, "1.000"), "ts must be microseconds with three decimals"));
  CHECK(says(slice("1.000", "0.000"), "dur must be"));
}

TEST_CASE("chrome_check: slices of a row may not partly overlap") {
  CHECK(says(slice("0.000", "10.000") + "," + slice("5.000", "10.000"), "partly overlaps another on row 1/1"));
  CHECK(says(slice("0.000", "1.001") + "," + slice("1.000", "1.000"), "partly overlaps"));
}

TEST_CASE("chrome_check: arrows bind") {
  const std::string two = slice("0.000", "10.000") + "," + slice("20.000", "5.000") + ",";
  const std::string good = arrow("f", "1", "20.000", ",\"bp\":\"e\"");
  CHECK(says(two + arrow("s", "1", "10.000") + "," + good, "arrow 1 starts outside any slice"));
  CHECK(says(two + arrow("s", "1", "9.999") + "," + arrow("f", "1", "19.999", ",\"bp\":\"e\""),
             "arrow 1 ends outside any slice"));
  CHECK(says(two + arrow("s", "1", "9.999") + "," + arrow("f", "1", "20.000"), "needs \"bp\": \"e\""));
  CHECK(says(two + arrow("s", "1", "9.999") + "," + arrow("s", "1", "8.000") + "," + good,
             "arrow 1 has 2 starts and 1 ends"));
  CHECK(says(two + good, "arrow 1 has 0 starts"));
  CHECK(says(two + arrow("s", "1", "21.000") + "," + good, "arrow 1 ends before it starts"));
  CHECK(says(two + good + "," + arrow("s", "1", "20.000"), "end before its start in the file"));
  CHECK(says(two + arrow("s", "\"0x1\"", "9.999"), "id must be a whole number"));
  CHECK(says(two + arrow("s", "9007199254740992", "9.999"), "below 2^53"));
}

TEST_CASE("chrome_check: rows are named and ordered") {
  const auto bare = [](const std::string& events) { return findings_text(check_chrome_trace(kHead + events + "]}")); };
  const std::string all = bare(slice("0.000", "1.000"));
  for (const char* what : {"process 1 has no name", "process 1 has no sort index", "thread 1/1 has no name",
                           "thread 1/1 has no sort index"})
    CHECK(all.find(what) != std::string::npos);
  CHECK(says(R"({"ph":"X","name":"A0","cat":"x","pid":-1,"tid":0,"ts":0.000,"dur":1.000})", "pid must be"));
  CHECK(says(R"({"ph":"B","name":"A0","pid":1,"tid":1,"ts":0.000})", "phase \"B\""));
  CHECK(says(R"({"ph":"X","name":"","pid":1,"tid":1,"ts":0.000,"dur":1.000})", "cat must be a text"));
}

TEST_CASE("chrome_check: op slices carry what they join by") {
  const std::string full =
      R"({"op":"D.recv","layer":0,"ubatch":1,"rank":0,"lane":"compute","tokens":1,"bytes":2,"sms":3,"plan_op":4,"waited_ns":0})";
  CHECK(check(slice("0.000", "1.000", full)) == "");
  CHECK(says(slice("0.000", "1.000", full) + "," + slice("1.000", "1.000", full), "plan_op 4 twice on rank 0"));
  CHECK(says(slice("0.000", "1.000", R"({"op":"D9","rank":0})"), "args.op \"D9\" is no kind of op"));
  CHECK(says(slice("0.000", "1.000", R"({"op":"A0","rank":0})"), "args.layer must be a whole number"));
  std::string no_wait = full;
  no_wait.replace(no_wait.find(",\"waited_ns\":0"), 14, "");
  CHECK(says(slice("0.000", "1.000", no_wait), "a receive needs args.waited_ns"));
  std::string other = full;
  other.replace(other.find("\"rank\":0"), 8, "\"rank\":1");
  other.replace(other.find("\"plan_op\":4"), 11, "\"plan_op\":5");
  CHECK(says(slice("0.000", "1.000", full) + "," + slice("1.000", "1.000", other), "two ranks in one process"));
  other = full;
  other.replace(other.find("\"compute\""), 9, "\"comm\"");
  CHECK(says(slice("0.000", "1.000", other), "called \"compute\" but holds lane \"comm\""));
}

TEST_CASE("chrome_check: counters hold numbers and go forward") {
  const auto counter = [](const char* ts, const char* args) {
    return std::string(R"({"ph":"C","name":"SMs","pid":1,"ts":)") + ts + ",\"args\":" + args + "}";
  };
  CHECK(check(counter("1.000", "{\"value\":3}") + "," + counter("1.000", "{\"value\":4}")) == "");
  CHECK(says(counter("1.000", "{}"), "a counter needs args"));
  CHECK(says(counter("1.000", "{\"value\":\"3\"}"), "must be a whole number"));
  CHECK(says(counter("2.000", "{\"value\":3}") + "," + counter("1.000", "{\"value\":4}"), "goes back in time"));
}
