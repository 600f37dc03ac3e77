// The all-to-all transports on real GPUs, against the reference worked out on the CPU. With one GPU ranks share it.
// Run without arguments it runs itself, and again after a failure, so that a trap or a hang spoils one case only.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include <unistd.h>

#include "tests/kernels/cuda/a2a_cuda_rig.h"

namespace dbo::a2a_test {
namespace {

using kernels::ElementType;

constexpr Transport kOneSided[] = {Transport::LsaHt, Transport::LsaLl, Transport::CopyEngine};
constexpr ElementType kPayloads[] = {ElementType::Bf16, ElementType::Fp8E4m3};

int gpu_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

Case basic_case(Transport transport, ElementType payload) {
  Case c;
  c.name = std::string(transport_info(transport).name) + (payload == ElementType::Bf16 ? " bf16" : " fp8");
  c.shape.dims = {.ranks = 2, .rank = 0, .experts_per_rank = 8, .top_k = 4, .hidden = 2176, .max_tokens = 75};
  c.shape.payload = payload;
  c.shape.transport = transport;
  c.tokens = {75, 61};
  c.blocks = 4;
  return c;
}

/// Players on GPU 0, or round robin over two.
std::vector<int> placed(const Case& c, int gpus) {
  std::vector<int> devices;
  for (int player = 0; player < players(c); ++player) devices.push_back(player % gpus);
  return devices;
}

void check(const Case& c, CudaOptions options, int rounds = 3) {
  const std::string where = c.name + ", devices " + std::to_string(options.devices.front()) + " to " +
                            std::to_string(options.devices.back()) + ", hidden " + std::to_string(c.shape.dims.hidden) +
                            ", top-k " + std::to_string(c.shape.dims.top_k) + ", ranks " +
                            std::to_string(c.shape.dims.ranks) + ", blocks " + std::to_string(c.blocks) +
                            (options.graph ? ", graph" : "") + (options.windows ? ", windows" : "");
  INFO(where);
  CudaRig rig(std::move(options));
  CHECK(run_case(rig, c, rounds) == "");
}

/// On one GPU, and on two where there are two.
void check_everywhere(const Case& c, CudaOptions options = {}, int rounds = 2) {
  for (int gpus = 1; gpus <= std::min(2, gpu_count()); ++gpus) {
    options.devices = placed(c, gpus);
    check(c, options, rounds);
  }
}

TEST_CASE("a2a: every one-sided transport delivers and combines, slots in turn") {
  for (Transport transport : kOneSided) {
    for (ElementType payload : kPayloads) {
      Case c = basic_case(transport, payload);
      check_everywhere(c, {}, 4);
      c.values = Values::Random;
      c.seed = 7;
      check_everywhere(c, {}, 2);
    }
  }
}

/// What memory checkers run: little work, every kernel of the one-sided transports.
TEST_CASE("a2a: every kernel once, small") {
  for (Transport transport : kOneSided) {
    for (ElementType payload : kPayloads) {
      Case c = basic_case(transport, payload);
      c.shape.dims.top_k = 3;
      c.shape.dims.hidden = 384;
      c.shape.dims.max_tokens = 13;
      c.shape.slots = 1;
      c.tokens = {13, 9};
      c.blocks = 3;
      c.tuning.wire_blocks = 1;
      check_everywhere(c, {}, 2);
      if (transport == Transport::CopyEngine) check_everywhere(c, {.epochs = true}, 2);
    }
  }
}

TEST_CASE("a2a: routing extremes") {
  for (Transport transport : kOneSided) {
    for (Routing routing : {Routing::OneExpert, Routing::OneRank, Routing::Holes, Routing::Dense}) {
      Case c = basic_case(transport, routing == Routing::Holes ? ElementType::Fp8E4m3 : ElementType::Bf16);
      c.routing = routing;
      check_everywhere(c);
    }
  }
}

TEST_CASE("a2a: ranks without tokens, and more blocks than tokens") {
  for (Transport transport : kOneSided) {
    Case c = basic_case(transport, ElementType::Bf16);
    c.shape.dims.ranks = 3;
    c.blocks = 8;
    for (const std::vector<int>& tokens : {std::vector<int>{0, 5, 1}, std::vector<int>{0, 0, 0}}) {
      c.tokens = tokens;
      check_everywhere(c);
    }
  }
}

TEST_CASE("a2a: top-k from 1 to 11") {
  for (Transport transport : kOneSided) {
    for (int top_k = 1; top_k <= kernels::kA2aMaxTopK; ++top_k) {
      Case c = basic_case(transport, top_k % 2 == 0 ? ElementType::Bf16 : ElementType::Fp8E4m3);
      c.shape.dims.top_k = top_k;
      c.shape.dims.hidden = 2048;
      c.shape.dims.max_tokens = 23;
      c.tokens = {23, 17};
      check_everywhere(c, {}, 1);
    }
  }
}

TEST_CASE("a2a: hidden sizes from 2048 to 8320") {
  for (Transport transport : kOneSided) {
    for (int hidden : {2048, 2688, 4096, 5120, 7168, 8320}) {
      Case c = basic_case(transport, ElementType::Bf16);
      c.shape.dims.experts_per_rank = 4;
      c.shape.dims.hidden = hidden;
      c.shape.dims.max_tokens = 37;
      c.tokens = {37, 30};
      check_everywhere(c, {}, 1);
      c.shape.payload = ElementType::Fp8E4m3;
      check_everywhere(c, {}, 1);
    }
  }
}

TEST_CASE("a2a: one rank and eight ranks") {
  for (Transport transport : kOneSided) {
    for (int ranks : {1, 8}) {
      Case c = basic_case(transport, ElementType::Bf16);
      c.shape.dims.ranks = ranks;
      c.shape.dims.experts_per_rank = 3;
      c.shape.dims.max_tokens = 40;
      c.tokens.assign(static_cast<std::size_t>(ranks), 40);
      c.shape.dims.top_k = 3;
      check_everywhere(c);
    }
  }
}

TEST_CASE("a2a: one or two GPUs play all ranks of a mirrored exchange") {
  for (Transport transport : kOneSided) {
    for (int number = 1; number <= std::min(2, gpu_count()); ++number) {
      Case c = basic_case(transport, ElementType::Bf16);
      c.shape.dims.ranks = 40;
      c.shape.dims.rank = 3;
      c.shape.dims.experts_per_rank = 2;
      c.shape.dims.top_k = 8;
      c.shape.dims.hidden = 2048;
      c.shape.dims.max_tokens = 16;
      c.mirrored = true;
      c.tokens.assign(static_cast<std::size_t>(number), 16);
      check(c, {.devices = placed(c, number)});
    }
  }
}

TEST_CASE("a2a: graph replays go on where the last one ended, with fresh data") {
  for (Transport transport : kOneSided) {
    for (ElementType payload : kPayloads) {
      Case c = basic_case(transport, payload);
      c.exact_rows = false;
      check_everywhere(c, {.graph = true}, 6);
    }
  }
}

TEST_CASE("a2a: copy-engine arrival by epochs, also in graphs") {
  Case c = basic_case(Transport::CopyEngine, ElementType::Bf16);
  c.exact_rows = false;
  check_everywhere(c, {.epochs = true}, 4);
  check_everywhere(c, {.graph = true, .epochs = true}, 6);
  c.shape.dims.ranks = 8;
  c.tokens.assign(8, 30);
  c.blocks = 2;
  check_everywhere(c, {.epochs = true}, 2);
}

TEST_CASE("a2a: prefill-sized calls with the blocks of a bench") {
  for (Transport transport : {Transport::LsaHt, Transport::CopyEngine}) {
    for (ElementType payload : kPayloads) {
      Case c = basic_case(transport, payload);
      c.shape.dims = {.ranks = 2, .rank = 0, .experts_per_rank = 128, .top_k = 8, .hidden = 7168, .max_tokens = 600};
      c.shape.slots = 1;
      c.tokens = {600, 513};
      c.blocks = 24;
      c.values = Values::Random;
      check(c, {.devices = placed(c, std::min(2, gpu_count()))}, 1);
    }
  }
}

TEST_CASE("a2a: decode-sized low-latency calls with the blocks of a bench") {
  for (ElementType payload : kPayloads) {
    Case c = basic_case(Transport::LsaLl, payload);
    c.shape.dims = {.ranks = 2, .rank = 0, .experts_per_rank = 8, .top_k = 8, .hidden = 7168, .max_tokens = 128};
    c.shape.slots = 1;
    c.tokens = {128, 127};
    c.blocks = 64;
    c.values = Values::Random;
    check_everywhere(c, {}, 1);
  }
}

TEST_CASE("a2a: more low-latency choices than fit into shared memory") {
  Case c = basic_case(Transport::LsaLl, ElementType::Bf16);
  c.shape.dims.top_k = 11;
  c.shape.dims.experts_per_rank = 6;
  c.shape.dims.hidden = 128;
  c.shape.dims.max_tokens = 2900;
  c.tokens = {2900, 2700};
  c.blocks = 32;
  check_everywhere(c, {}, 2);
}

TEST_CASE("a2a: results do not depend on how rows are kept in flight") {
  Case c = basic_case(Transport::LsaHt, ElementType::Bf16);
  for (int stages : {2, 3}) {
    c.tuning.stages = stages;
    check_everywhere(c);
  }
}

TEST_CASE("a2a: some blocks send to other ranks, the rest move own rows") {
  for (ElementType payload : kPayloads) {
    for (int wire : {1, 3}) {
      Case c = basic_case(Transport::LsaHt, payload);
      c.shape.dims.ranks = 3;
      c.tokens = {75, 61, 0};
      c.tuning.wire_blocks = wire;
      check_everywhere(c);
    }
  }
}

TEST_CASE("a2a: nccl transport, messages exact and padded, also in graphs") {
  std::vector<int> devices = {0};
  if (gpu_count() >= 2) devices.push_back(1);
  NcclWorld world(devices);
  REQUIRE(world.error == "");
  for (ElementType payload : kPayloads) {
    for (bool exact : {true, false}) {
      Case c = basic_case(Transport::Nccl, payload);
      c.shape.dims.ranks = static_cast<int>(devices.size());
      c.tokens.resize(devices.size());
      c.exact_rows = exact;
      check(c, {.devices = devices, .nccl = &world});
      c.routing = Routing::OneRank;
      check(c, {.devices = devices, .nccl = &world});
      if (!exact) check(c, {.devices = devices, .graph = true, .nccl = &world}, 6);
    }
  }
}

TEST_CASE("a2a: the same kernels on NCCL windows") {
  std::vector<int> devices = {0};
  if (gpu_count() >= 2) devices.push_back(1);
  NcclWorld world(devices);
  REQUIRE(world.error == "");
  REQUIRE_MESSAGE(world.has_device_comms(), "NCCL offers no device communicator over these GPUs");
  for (Transport transport : {Transport::LsaHt, Transport::LsaLl, Transport::CopyEngine, Transport::Nccl}) {
    Case c = basic_case(transport, ElementType::Bf16);
    c.shape.dims.ranks = static_cast<int>(devices.size());
    c.tokens.resize(devices.size());
    check(c, {.devices = devices, .windows = true, .nccl = &world});
  }
}

TEST_CASE("a2a: an emulated wire holds the receive for its time, and no longer") {
  constexpr double kWireUs = 400;
  for (Transport transport : kOneSided) {
    for (bool epochs : {false, true}) {
      if (epochs && transport != Transport::CopyEngine) continue;
      Case c = basic_case(transport, ElementType::Bf16);
      c.shape.dims.ranks = 8;
      c.shape.dims.max_tokens = 20;
      c.mirrored = true;
      c.tokens = {20};
      CudaRig rig({.devices = {0}, .epochs = epochs, .wire_ns = static_cast<std::uint64_t>(kWireUs * 1000)});
      INFO(c.name);
      CHECK(run_case(rig, c, 3) == "");
      // The latest combine, by events around all its launches.
      CHECK(rig.last_us(0) >= kWireUs);
      CHECK(rig.last_us(0) <= kWireUs + 200);
    }
  }
}

TEST_CASE("a2a: the progress word says that the call is done, and which") {
  Case c = basic_case(Transport::LsaHt, ElementType::Bf16);
  CudaRig rig({.devices = placed(c, 1)});
  CHECK(run_case(rig, c, 3) == "");  // slots 0, 1, 0: slot 0's second epoch came last
  CHECK(rig.progress(0) == kernels::progress_word(2, kernels::ProgressStage::Done));
}

TEST_CASE("a2a: both sides of a clock probe agree") {
  for (int gpus = 1; gpus <= std::min(2, gpu_count()); ++gpus) {
    Case c = basic_case(Transport::LsaHt, ElementType::Bf16);
    CudaRig rig({.devices = placed(c, gpus)});
    REQUIRE(run_case(rig, c, 1) == "");
    std::array<std::int64_t, 2> offsets = {};
    for (int asker : {0, 1}) {
      std::int64_t* offset = nullptr;
      REQUIRE(cudaSetDevice(rig.call_of(asker, 0).layout.dims.rank % gpus) == cudaSuccess);
      REQUIRE(cudaMalloc(&offset, sizeof *offset) == cudaSuccess);
      for (int rank : {0, 1}) {
        REQUIRE(cudaSetDevice(rank % gpus) == cudaSuccess);
        const kernels::ClockProbeArgs args{rig.call_of(rank, 0), 1 - rank, rank == asker, 200, offset};
        REQUIRE(kernels::launch_clock_probe(args, rig.stream(rank)) == cudaSuccess);
      }
      REQUIRE(rig.wait() == "");
      REQUIRE(cudaMemcpy(&offsets[static_cast<std::size_t>(asker)], offset, sizeof *offset, cudaMemcpyDefault) ==
              cudaSuccess);
      CHECK(cudaFree(offset) == cudaSuccess);
    }
    std::printf("clock offsets over %d GPU(s): %lld and %lld ns\n", gpus, static_cast<long long>(offsets[0]),
                static_cast<long long>(offsets[1]));
    // One clock: nothing but half a round trip's asymmetry. Two: equal and opposite within the same.
    CHECK(std::abs(offsets[0] + offsets[1]) < 5000);
    if (gpus == 1) CHECK(std::abs(offsets[0]) < 5000);
  }
}

/// Runs this program with one (hidden) test case; its output and exit code.
std::pair<std::string, int> run_child(const std::string& test_case) {
  const std::string command = "/proc/self/exe '-tc=" + test_case + "' -ns 2>&1";
  char self[4096] = {};
  const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
  REQUIRE(length > 0);
  FILE* const pipe = popen((std::string(self) + command.substr(std::strlen("/proc/self/exe"))).c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string output;
  for (int ch = std::fgetc(pipe); ch != EOF; ch = std::fgetc(pipe)) output += static_cast<char>(ch);
  return {output, pclose(pipe)};
}

TEST_CASE("a2a: a missed deadline names who waited for whom and traps") {
  const auto [output, status] = run_child("child: rank 1 stays silent");
  INFO(output);
  CHECK(status != 0);
  CHECK(output.find("lsa-ll dispatch receive on rank 0, slot 0, waited") != std::string::npos);
  CHECK(output.find("for rank 1: epoch 1 expected, 0 seen") != std::string::npos);
}

TEST_CASE("a2a: more rows than the copies were sized for trap with both numbers") {
  const auto [output, status] = run_child("child: rows beyond the limit");
  INFO(output);
  CHECK(status != 0);
  CHECK(output.find("rows for rank 1, but the call was sized for 1") != std::string::npos);
}

TEST_CASE("child: rank 1 stays silent" * doctest::skip()) {
  Case c = basic_case(Transport::LsaLl, ElementType::Bf16);
  check(c, {.devices = placed(c, 1), .deadline_ns = 100'000'000, .silent = {1}}, 1);
}

/// Sizes the copies for one row, whatever the case has.
class ShortRig final : public Rig {
 public:
  explicit ShortRig(CudaRig& rig) : rig_(rig) {}
  std::string prepare(const Case& c, const std::vector<kernels::A2aLayout>& layouts) override {
    return rig_.prepare(c, layouts);
  }
  std::string set_tokens(int player, const TokenData& data) override { return rig_.set_tokens(player, data); }
  std::string set_rows(const std::vector<std::vector<std::int32_t>>&,
                       const std::vector<std::vector<std::int32_t>>&) override {
    return rig_.set_rows({{75, 1}, {1, 75}}, {{75, 1}, {1, 75}});
  }
  std::string dispatch(int slot) override { return rig_.dispatch(slot); }
  std::string combine(int slot) override { return rig_.combine(slot); }
  std::vector<std::byte> read(int player) override { return rig_.read(player); }
  void write(int player, const std::vector<std::byte>& buffer) override { rig_.write(player, buffer); }
  std::vector<std::uint16_t> result(int player) override { return rig_.result(player); }

 private:
  CudaRig& rig_;
};

TEST_CASE("child: rows beyond the limit" * doctest::skip()) {
  const Case c = basic_case(Transport::CopyEngine, ElementType::Bf16);
  CudaRig rig({.devices = placed(c, 1)});
  ShortRig short_rig(rig);
  CHECK(run_case(short_rig, c, 1) == "");
}

bool logs_cases = false;

/// With `logs_cases`: a line per case when it ends. After a failed one the process ends too, since a trap spoils all
/// that would follow.
class CaseLog final : public doctest::IReporter {
 public:
  explicit CaseLog(const doctest::ContextOptions&) {}
  void test_case_start(const doctest::TestCaseData& data) override {
    name_ = data.m_name;
    begin_ = std::chrono::steady_clock::now();
  }
  void test_case_end(const doctest::CurrentTestCaseStats& stats) override {
    if (!logs_cases) return;
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
    std::printf("%s  %5.1f s  %s\n", stats.testCaseSuccess ? "PASS" : "FAIL", seconds, name_);
    std::fflush(nullptr);
    if (!stats.testCaseSuccess) _exit(1);
  }
  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats&) override {}
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData&) override {}
  void log_message(const doctest::MessageData&) override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}

 private:
  const char* name_ = "";
  std::chrono::steady_clock::time_point begin_;
};
REGISTER_LISTENER("case_log", 1, CaseLog);

/// The program's own test cases, hidden ones left out.
std::vector<std::string> list_cases(const char* self) {
  std::vector<std::string> names;
  FILE* const list = popen((std::string(self) + " -ltc").c_str(), "r");
  if (list == nullptr) return names;
  std::array<char, 512> line{};
  while (std::fgets(line.data(), static_cast<int>(line.size()), list) != nullptr) {
    std::string name(line.data());
    while (!name.empty() && name.back() == '\n') name.pop_back();
    if (name.rfind("a2a: ", 0) == 0) names.push_back(name);
  }
  (void)pclose(list);
  return names;
}

/// Runs these cases in one process as far as it comes: echoes what it prints; how many ended, and how many of those
/// passed.
std::pair<std::size_t, int> run_cases(const char* self, const std::vector<std::string>& names) {
  std::string pattern;
  for (const std::string& name : names) pattern += (pattern.empty() ? "" : ",") + name;
  std::size_t at = 0;
  for (const std::string& name : names) {
    // doctest separates patterns by commas.
    for (std::size_t i = 0; i < name.size(); ++i) {
      if (name[i] == ',') pattern[at + i] = '?';
    }
    at += name.size() + 1;
  }
  std::size_t ended = 0;
  int passed = 0;
  FILE* const pipe =
      popen(("timeout -s KILL 180 " + std::string(self) + " -m --each '-tc=" + pattern + "' 2>&1").c_str(), "r");
  if (pipe == nullptr) return {0, 0};
  std::array<char, 4096> line{};
  while (std::fgets(line.data(), static_cast<int>(line.size()), pipe) != nullptr) {
    std::fputs(line.data(), stdout);
    const std::string text(line.data());
    if (text.rfind("PASS  ", 0) == 0) ++passed, ++ended;
    if (text.rfind("FAIL  ", 0) == 0) ++ended;
  }
  (void)pclose(pipe);
  return {ended, passed};
}

/// Runs all test cases, beginning a new process after one that failed, trapped or hung; the number of those.
int run_each(const char* self) {
  std::vector<std::string> left = list_cases(self);
  const int number = static_cast<int>(left.size());
  int passed = 0;
  while (!left.empty()) {
    std::fflush(stdout);
    auto [ended, good] = run_cases(self, left);
    passed += good;
    if (ended == static_cast<std::size_t>(good) && ended < left.size()) {
      std::printf("FAIL  (the process ended)  %s\n", left[ended].c_str());
      ++ended;
    }
    left.erase(left.begin(), left.begin() + static_cast<std::ptrdiff_t>(ended));
  }
  std::printf("%d passed, %d failed\n", passed, number - passed);
  return number == 0 ? 1 : number - passed;
}

}  // namespace
}  // namespace dbo::a2a_test

int main(int argc, char** argv) {
  // Before the first CUDA or NCCL call: a hardware queue for each loopback rank's stream, and no NVLink multicast.
  (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  (void)setenv("NCCL_NVLS_ENABLE", "0", 1);
  if (argc == 2 && std::strcmp(argv[1], "-ltc") == 0) return doctest::Context(argc, argv).run();
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
    std::printf("skipped: no GPU\n");
    return 77;
  }
  if (argc == 1) return dbo::a2a_test::run_each(argv[0]) == 0 ? 0 : 1;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--each") == 0) dbo::a2a_test::logs_cases = true;
  }
  if (gpus == 1) std::printf("one GPU: ranks share it, cases of two GPUs are skipped\n");
  return doctest::Context(argc, argv).run();
}
