#include <doctest/doctest.h>

#include <algorithm>
#include <bit>

#include <cstring>
#include <utility>
#include <vector>

#include "kernels/stand_in/stand_in.h"
#include "runtime/cuda/check.h"
#include "runtime/cuda/handles.h"
#include "runtime/cuda/process.h"
#include "runtime/cuda/sm_partition.h"
#include "sim/base/error.h"
#include "sim/base/hash.h"

using namespace dbo;
using namespace dbo::runtime;

namespace {

/// One GPU with a mailbox for itself and a few stamps.
struct Bench {
  Bench() {
    start_gpu(0);
    stream = Stream::create(false);
    mailbox = DeviceBuffer(kernels::mailbox_bytes(1, 4));
    stamps = DeviceBuffer(8 * sizeof(kernels::OpStamp));
    DBO_CUDA_CHECK(kernels::prepare_stand_in());
    begin();
  }
  void begin() {
    DBO_CUDA_CHECK(kernels::launch_step_begin({mailbox.get(), stamps.as<kernels::OpStamp>(), 8}, stream.get()));
  }
  kernels::StandInArgs args(int op) const {
    kernels::StandInArgs a;
    a.stamp = stamps.as<kernels::OpStamp>() + op;
    a.mailbox = a.peers[0] = mailbox.get();
    a.calls = 4;
    return a;
  }
  kernels::OpStamp stamp(int op) const {
    DBO_CUDA_CHECK(cudaStreamSynchronize(stream.get()));
    kernels::OpStamp s{};
    DBO_CUDA_CHECK(cudaMemcpy(&s, stamps.as<kernels::OpStamp>() + op, sizeof s, cudaMemcpyDeviceToHost));
    return s;
  }
  static int sms(const kernels::OpStamp& s) {
    int count = 0;
    for (const std::uint32_t word : s.sm_mask) count += std::popcount(word);
    return count;
  }

  Stream stream;
  DeviceBuffer mailbox, stamps;
};

}  // namespace

TEST_CASE("handles: owners move, and leave an empty one behind") {
  start_gpu(0);
  Stream a = Stream::create(true);
  const cudaStream_t raw = a.get();
  Stream b = std::move(a);
  CHECK(b.get() == raw);
  CHECK(a.get() == nullptr);  // NOLINT: the moved-from state is the point
  DeviceBuffer buffer(1000);
  std::vector<unsigned char> bytes(1000, 1);
  DBO_CUDA_CHECK(cudaMemcpy(bytes.data(), buffer.get(), bytes.size(), cudaMemcpyDeviceToHost));
  CHECK(std::count(bytes.begin(), bytes.end(), 0) == 1000);
  DeviceBuffer taken;
  taken = std::move(buffer);
  CHECK(taken.bytes() == 1000);
  CHECK(buffer.get() == nullptr);  // NOLINT
  const HostWords words(3);
  const std::uint64_t value = 42;
  DBO_CUDA_CHECK(cudaMemcpy(words.device(1), &value, sizeof value, cudaMemcpyHostToDevice));
  CHECK(words.load(0) == 0);
  CHECK(words.load(1) == 42);
}

TEST_CASE("handles: an error names expression, code, text and place") {
  start_gpu(0);
  try {
    const ErrorScope scope("MLP of ubatch 0");
    DBO_CUDA_CHECK(cudaSetDevice(4711));
    CHECK(false);
  } catch (const CudaError& error) {
    const std::string text = error.what();
    CAPTURE(text);
    CHECK(text.find("cudaErrorInvalidDevice") != std::string::npos);
    CHECK(text.find("cudaSetDevice(4711)") != std::string::npos);
    CHECK(text.find("stand_in_gpu_test.cpp:") != std::string::npos);
    CHECK(text.find("in MLP of ubatch 0") != std::string::npos);
  }
  // The error does not come back with the next call.
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("stand-in: it lasts what it is told, on as many SMs as it has blocks") {
  Bench bench;
  const DeviceBuffer result(sizeof(kernels::TimerProbe));
  DBO_CUDA_CHECK(kernels::launch_timer_probe(result.as<kernels::TimerProbe>(), bench.stream.get()));
  kernels::TimerProbe timer{};
  DBO_CUDA_CHECK(cudaStreamSynchronize(bench.stream.get()));
  DBO_CUDA_CHECK(cudaMemcpy(&timer, result.get(), sizeof timer, cudaMemcpyDeviceToHost));
  MESSAGE("globaltimer tick " << timer.tick_ns << " ns, SM clock " << timer.cycles_per_1024_ns / 1.024 << " MHz, read "
                              << timer.read_cycles << " cycles");
  CHECK(timer.tick_ns > 0);
  CHECK(timer.cycles_per_1024_ns > 500);
  // Blocks read their begins at the same time, and the first to tell is not always the first to have begun.
  const auto slack = static_cast<std::int64_t>(2 * timer.tick_ns + 500);
  for (const bool by_cycles : {false, true}) {
    for (const int us : {20, 50, 200}) {
      for (const int blocks : {1, 16, 100}) {
        CAPTURE(by_cycles);
        CAPTURE(us);
        CAPTURE(blocks);
        bench.begin();
        kernels::StandInArgs args = bench.args(0);
        args.duration_ns = static_cast<std::uint64_t>(us) * 1000;
        args.blocks = blocks;
        if (by_cycles) args.cycles_per_1024_ns = timer.cycles_per_1024_ns;
        DBO_CUDA_CHECK(kernels::launch_stand_in(args, bench.stream.get()));
        const kernels::OpStamp stamp = bench.stamp(0);
        const auto lasted = static_cast<std::int64_t>(stamp.end_ns - stamp.begin_ns);
        CHECK(lasted >= us * 1000 - slack);
        CHECK(lasted <= us * 1000 + slack);
        CHECK(Bench::sms(stamp) == blocks);
      }
    }
  }
}

TEST_CASE("stand-in: the end it writes ahead is its end: whatever its role, the next launch begins just behind it") {
  Bench bench;
  const kernels::StandInRole roles[] = {kernels::StandInRole::Work, kernels::StandInRole::Send,
                                        kernels::StandInRole::Receive, kernels::StandInRole::Collective};
  // Calls of their own for the send with its receive and for the comm kernel.
  const int calls[] = {0, 0, 0, 1};
  std::vector<std::int64_t> behind[4];
  for (int round = 0; round < 20; ++round) {
    bench.begin();
    for (int i = 0; i < 5; ++i) {
      kernels::StandInArgs args = bench.args(i);
      args.role = roles[i % 4];
      args.call = calls[i % 4];
      args.duration_ns = 20'000;
      args.blocks = 100;
      DBO_CUDA_CHECK(kernels::launch_stand_in(args, bench.stream.get()));
    }
    for (int i = 0; i < 4; ++i) {
      const kernels::OpStamp now = bench.stamp(i), next = bench.stamp(i + 1);
      behind[i].push_back(static_cast<std::int64_t>(next.begin_ns - now.end_ns));
      const auto lasted = static_cast<std::int64_t>(now.end_ns - now.begin_ns);
      CHECK(lasted >= 19'500);
      CHECK(lasted <= 20'500);
    }
  }
  for (int i = 0; i < 4; ++i) {
    std::sort(behind[i].begin(), behind[i].end());
    MESSAGE("role " << i << ": next begins " << behind[i].front() << " to " << behind[i].back() << " ns behind, median "
                    << behind[i][10]);
    CHECK(behind[i].front() >= 0);
    CHECK(behind[i][10] <= 6'000);
  }
}

TEST_CASE("stand-in: given no time, it lasts what telling and looking take") {
  Bench bench;
  const kernels::StandInRole roles[] = {kernels::StandInRole::Work, kernels::StandInRole::Send,
                                        kernels::StandInRole::Receive, kernels::StandInRole::Collective};
  const int calls[] = {0, 0, 0, 1};
  for (const int blocks : {1, 100}) {
    std::vector<std::int64_t> lasted[4];
    for (int round = 0; round < 20; ++round) {
      bench.begin();
      for (int i = 0; i < 4; ++i) {
        kernels::StandInArgs args = bench.args(i);
        args.role = roles[i];
        args.call = calls[i];
        args.blocks = blocks;
        DBO_CUDA_CHECK(kernels::launch_stand_in(args, bench.stream.get()));
      }
      for (int i = 0; i < 4; ++i)
        lasted[i].push_back(static_cast<std::int64_t>(bench.stamp(i).end_ns - bench.stamp(i).begin_ns));
    }
    for (int i = 0; i < 4; ++i) {
      std::sort(lasted[i].begin(), lasted[i].end());
      MESSAGE("role " << i << ", " << blocks << " blocks: " << lasted[i][10] << " ns, at most " << lasted[i].back());
      // What predictions take as the shortest op that lasts what it was given.
      CHECK(lasted[i][10] <= 5'000);
    }
  }
}

TEST_CASE("stand-in: it copies every byte and no other, and lasts at least as long as the copy") {
  Bench bench;
  constexpr std::size_t kBytes = (1u << 20) + 16, kGuard = 4096;
  const DeviceBuffer source(kBytes), target(kBytes + kGuard);
  std::vector<std::uint64_t> data(kBytes / 8);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = mix(3, i);
  DBO_CUDA_CHECK(cudaMemcpy(source.get(), data.data(), kBytes, cudaMemcpyHostToDevice));
  for (const int blocks : {1, 7, 64}) {
    DBO_CUDA_CHECK(cudaMemset(target.get(), 0xA5, kBytes + kGuard));
    kernels::StandInArgs args = bench.args(1);
    args.src = source.get();
    args.dst = target.get();
    args.bytes = kBytes;
    args.blocks = blocks;
    DBO_CUDA_CHECK(cudaDeviceSynchronize());
    DBO_CUDA_CHECK(kernels::launch_stand_in(args, bench.stream.get()));
    DBO_CUDA_CHECK(cudaStreamSynchronize(bench.stream.get()));
    std::vector<std::uint64_t> back((kBytes + kGuard) / 8);
    DBO_CUDA_CHECK(cudaMemcpy(back.data(), target.get(), kBytes + kGuard, cudaMemcpyDeviceToHost));
    CHECK(std::memcmp(back.data(), data.data(), kBytes) == 0);
    CHECK(std::count(back.begin() + kBytes / 8, back.end(), 0xA5A5A5A5A5A5A5A5ULL) == kGuard / 8);
  }
}

TEST_CASE("stand-in: a receive holds until the send's end plus the wire, replay after replay") {
  Bench bench;
  for (int step = 0; step < 3; ++step) {
    bench.begin();
    kernels::StandInArgs send = bench.args(0), receive = bench.args(1);
    send.role = kernels::StandInRole::Send;
    send.duration_ns = 20'000;
    send.call = receive.call = step % 2;
    receive.role = kernels::StandInRole::Receive;
    receive.wire_ns = 150'000;
    receive.duration_ns = 10'000;
    receive.blocks = 4;
    DBO_CUDA_CHECK(kernels::launch_stand_in(send, bench.stream.get()));
    DBO_CUDA_CHECK(kernels::launch_stand_in(receive, bench.stream.get()));
    const kernels::OpStamp sent = bench.stamp(0), received = bench.stamp(1);
    const auto wire = static_cast<std::int64_t>(received.ready_ns - sent.end_ns);
    const auto own = static_cast<std::int64_t>(received.end_ns - received.ready_ns);
    CAPTURE(step);
    CHECK(wire == 150'000);
    CHECK(own >= 9'500);
    CHECK(own <= 10'500);
    CHECK(received.missing == 0);
  }
}

TEST_CASE("stand-in: a receive whose send never comes gives up at its deadline and says who is missing") {
  Bench bench;
  kernels::StandInArgs receive = bench.args(2);
  receive.role = kernels::StandInRole::Receive;
  receive.call = 3;
  receive.deadline_ns = 2'000'000;
  DBO_CUDA_CHECK(kernels::launch_stand_in(receive, bench.stream.get()));
  CHECK(bench.stamp(2).missing == 1);
  // Having given up once, the step waits no more.
  receive.stamp = bench.args(3).stamp;
  receive.call = 2;
  receive.deadline_ns = 2'000'000'000;
  DBO_CUDA_CHECK(kernels::launch_stand_in(receive, bench.stream.get()));
  const kernels::OpStamp second = bench.stamp(3);
  CHECK(second.missing == 1);
  CHECK(second.end_ns - second.begin_ns < 1'000'000);
}

TEST_CASE("stand-in: unsupported arguments are refused") {
  Bench bench;
  kernels::StandInArgs args = bench.args(0);
  args.bytes = 8;
  CHECK(kernels::launch_stand_in(args, bench.stream.get()) == cudaErrorInvalidValue);
  args = bench.args(0);
  args.blocks = 0;
  CHECK(kernels::launch_stand_in(args, bench.stream.get()) == cudaErrorInvalidValue);
  args = bench.args(0);
  args.role = kernels::StandInRole::Receive;
  args.call = 4;
  CHECK(kernels::launch_stand_in(args, bench.stream.get()) == cudaErrorInvalidValue);
}

TEST_CASE("sm: a green context keeps kernels to its SMs, and the two share none") {
  Bench bench;
  const SmPartition partition = SmPartition::create(0, 20);
  MESSAGE("asked for 20 comm SMs, got " << partition.comm_sms() << " and " << partition.compute_sms());
  CHECK(partition.comm_sms() >= 20);
  const int all = list_gpus()[0].sms;
  CHECK(partition.comm_sms() + partition.compute_sms() == all);
  const Stream compute = partition.compute_stream(), comm = partition.comm_stream();
  // Far more blocks than SMs, several an SM: they go wherever they are let.
  kernels::StandInArgs on_compute = bench.args(0), on_comm = bench.args(1);
  on_compute.blocks = on_comm.blocks = 2000;
  on_compute.whole_sm = on_comm.whole_sm = false;
  on_compute.duration_ns = on_comm.duration_ns = 5'000;
  DBO_CUDA_CHECK(cudaStreamSynchronize(bench.stream.get()));
  DBO_CUDA_CHECK(kernels::launch_stand_in(on_compute, compute.get()));
  DBO_CUDA_CHECK(kernels::launch_stand_in(on_comm, comm.get()));
  DBO_CUDA_CHECK(cudaDeviceSynchronize());
  const kernels::OpStamp a = bench.stamp(0), b = bench.stamp(1);
  CHECK(Bench::sms(a) == partition.compute_sms());
  CHECK(Bench::sms(b) == partition.comm_sms());
  for (int word = 0; word < kernels::kSmWords; ++word) CHECK((a.sm_mask[word] & b.sm_mask[word]) == 0);
}

TEST_CASE("sm: a partition that leaves nothing for compute is refused") {
  start_gpu(0);
  CHECK_THROWS_AS(SmPartition::create(0, 0), InputError);
  CHECK_THROWS_AS(SmPartition::create(0, list_gpus()[0].sms), InputError);
}
