// Broken traces: whatever a file holds, it is read or refused with a reason, and what is made of it keeps our rules.
#include <doctest/doctest.h>

#include <stdexcept>

#include "sim/base/error.h"
#include "sim/base/hash.h"
#include "tests/traces/kineto_builder.h"
#include "tests/traces/simulated.h"
#include "traces/chrome_check.h"
#include "traces/chrome_writer.h"
#include "traces/found_order.h"
#include "traces/inspect.h"
#include "traces/kineto_check.h"
#include "traces/kineto_writer.h"
#include "traces/own_trace.h"
#include "traces/timeline_svg.h"

using namespace dbo;
using dbo::testing::KinetoBuilder;
using dbo::testing::simulated;
using dbo::testing::worked_costs;

namespace {

/// The random numbers of one case: the same on every machine.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : seed_(seed) {}
  std::size_t below(std::size_t bound) { return static_cast<std::size_t>(mix_below(seed_, counter_++, bound)); }

 private:
  std::uint64_t seed_, counter_ = 0;
};

std::vector<std::string> seeds() {
  std::vector<std::string> texts;
  const Trace low = simulated(make_plan("vllm-ll", fakes::small_spec(2, 2, Transport::LsaLl)), worked_costs(true));
  const Trace high = simulated(make_plan("vllm-ht", fakes::small_spec(2, 2, Transport::Nccl)), worked_costs(false));
  texts.push_back(chrome_trace_text(low));
  texts.push_back(chrome_trace_text(high));
  texts.push_back(kineto_trace_text(high));
  KinetoBuilder builder;
  int t = 0;
  builder.range("ProfilerStep#1", 0, 900);
  for (int layer = 0; layer < 3; ++layer)
    for (const char* name :
         {"rms_norm", "gemm", "flash_fwd", "gemm", "deep_ep::internode_ll::dispatch", "deep_ep::internode_ll::dispatch",
          "grouped_gemm", "grouped_gemm", "deep_ep::internode_ll::combine", "gemm", "deep_ep::internode_ll::combine"}) {
      t += 10;
      builder.kernel(name, t % 50 == 0 ? 9 : 7, t, 8 + t / 10 % 7, t / 3);
    }
  builder.sync(9, 7, 3, 40);
  builder.call("cudaStreamSynchronize", 200, 50);
  builder.call("cudaStreamWaitEvent", 300, 1);
  builder.range("attn(F)", 0, 50);
  builder.range("dispatch(B)", 50, 100);
  texts.push_back(builder.text());
  texts.push_back(
      R"([{"ph":"B","name":"a","pid":1,"tid":1,"ts":1},{"ph":"E","pid":1,"tid":1,"ts":5},{"ph":"X","name":"k","pid":0,"tid":"stream 3","ts":"2.5","dur":1e1},)"
      R"({"ph":"M","name":"thread_name","pid":0,"tid":"stream 3","args":{"name":"stream 3 "}},{"ph":"C","name":"c","pid":1,"ts":1,"args":{"value":3}},])");
  return texts;
}

std::string mutated(std::string text, Dice& dice) {
  constexpr const char* kParts[] = {"{",
                                    "}",
                                    "[",
                                    "]",
                                    ",",
                                    ":",
                                    "\"",
                                    "\\",
                                    "null",
                                    "-1",
                                    "1e99",
                                    "\x01",
                                    "NaN",
                                    "{}",
                                    "[[[[",
                                    "true",
                                    "0.1",
                                    "\\u0000",
                                    "\\uD8",
                                    "9223372036854775807",
                                    "\n",
                                    "\xff",
                                    "\"op\":\"D.recv\"",
                                    "\"dur\":",
                                    "99999999999999999999",
                                    "-0.0004"};
  const std::size_t changes = 1 + dice.below(6);
  for (std::size_t i = 0; i < changes && !text.empty(); ++i) {
    const std::size_t at = dice.below(text.size());
    switch (dice.below(7)) {
      case 0:
        text[at] = static_cast<char>(dice.below(256));
        break;
      case 1:
        text.erase(at, 1 + dice.below(40));
        break;
      case 2:
        text.insert(at, kParts[dice.below(std::size(kParts))]);
        break;
      case 3:
        text.insert(dice.below(text.size()), text.substr(at, 1 + dice.below(200)));
        break;
      case 4:
        text.resize(at);
        break;
      case 5: {  // another number in place of one
        const std::size_t digit = text.find_first_of("0123456789", at);
        if (digit != std::string::npos) text.replace(digit, 1, kParts[dice.below(std::size(kParts))]);
        break;
      }
      default:  // one digit more makes a time absurd
        if (const std::size_t digit = text.find_first_of("0123456789", at); digit != std::string::npos)
          text.insert(digit, std::string(1 + dice.below(20), '9'));
        break;
    }
  }
  return text;
}

/// Everything that takes a trace; throws InputError for what cannot be used.
void use(const std::string& text) {
  const Inspection inspection = inspect_raw(read_raw_trace_text(text, "f.json"));
  CHECK(!inspection_text(inspection).empty());
  CHECK(!pretty_json(inspection_json(inspection)).empty());
  CHECK(!timeline_svg(inspection.ops).empty());
  const std::string chrome = chrome_trace_text(inspection.ops);
  // plan_op and ranks are as the broken file has them, twice for all we know; all else is for the writer to keep.
  for (const ChromeFinding& finding : check_chrome_trace(chrome))
    if (finding.text.find("plan_op") == std::string::npos) throw std::runtime_error(finding.text);
  for (const std::int32_t rank : inspection.classified.ranks()) {
    OrderSearchOptions search;
    search.rank = rank;
    const FoundOrder order = find_order(inspection.classified, search);
    CHECK(linearise(order.plan, 0).ops.size() == order.launches.size());
    KinetoOptions kineto;
    kineto.rank = rank;
    const std::string exported = kineto_trace_text(inspection.ops, kineto);
    CHECK(findings_text(check_kineto_trace(exported)) == "");
  }
}

}  // namespace

TEST_CASE("fuzz: the seeds themselves are fine") {
  for (const std::string& seed : seeds()) use(seed);
}

TEST_CASE("fuzz: broken traces are read or refused, and never break what is made of them") {
  const std::vector<std::string> texts = seeds();
  int used = 0, refused = 0;
  for (std::uint64_t round = 0; round < 3000; ++round) {
    Dice dice(round);
    const std::string text = mutated(texts[dice.below(texts.size())], dice);
    try {
      use(text);
      ++used;
    } catch (const InputError&) {
      ++refused;
    } catch (const std::exception& error) {
      FAIL_CHECK("round " << round << ": " << std::string(error.what()));
    }
  }
  CHECK(used > 1000);
  CHECK(refused > 50);
}

TEST_CASE("fuzz: strict checkers take any bytes") {
  const std::vector<std::string> texts = seeds();
  for (std::uint64_t round = 0; round < 2000; ++round) {
    Dice dice(round + 1'000'000);
    const std::string text = mutated(texts[dice.below(3)], dice);
    static_cast<void>(check_chrome_trace(text));
    static_cast<void>(check_kineto_trace(text));
  }
}
