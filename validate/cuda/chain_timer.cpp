#include "validate/cuda/chain_timer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>
#include <thread>

#include "runtime/cuda/check.h"
#include "sim/base/error.h"

namespace dbo::validate {

using runtime::Event;
using runtime::Graph;
using runtime::GraphExec;
using runtime::Stream;

namespace {

// Longer than any replay here, far shorter than a step of a GPU suite.
constexpr Ns kReplayDeadline{10'000'000'000};

}  // namespace

void await(cudaStream_t stream, Ns deadline, const std::string& what) {
  const auto give_up = std::chrono::steady_clock::now() + deadline;
  for (int i = 0;; ++i) {
    const cudaError_t code = cudaStreamQuery(stream);
    if (code == cudaSuccess) return;
    if (code != cudaErrorNotReady) DBO_CUDA_CHECK(code);
    if (i < 20'000) continue;
    if (std::chrono::steady_clock::now() > give_up)
      throw CudaError(what + " did not end within " + std::to_string(deadline.count() / 1'000'000'000) + " s");
    std::this_thread::yield();
  }
}

Timing timing_of(std::vector<double> us, double mhz) {
  if (us.empty()) return {};
  std::sort(us.begin(), us.end());
  const auto at = [&](double share) {
    return us[std::min(us.size() - 1, static_cast<std::size_t>(share * static_cast<double>(us.size())))];
  };
  return {at(0.5), at(0.75) - at(0.25), static_cast<int>(us.size()), mhz};
}

ChainTimer::ChainTimer(runtime::HostGroup& group, std::vector<cudaStream_t> sides)
    : group_(group),
      sides_(std::move(sides)),
      stream_(Stream::create(false)),
      other_(Stream::create(true)),
      fork_(Event::create(false)),
      join_(Event::create(false)) {
  for (std::size_t i = 0; i < sides_.size(); ++i) side_joins_.push_back(Event::create(false));
}

const Event& ChainTimer::event(std::size_t index) {
  while (events_.size() <= index) events_.push_back(Event::create(true));
  return events_[index];
}

void ChainTimer::mark(std::size_t index, cudaStream_t stream) {
  // External: an event node of the graph, recorded at every replay.
  DBO_CUDA_CHECK(cudaEventRecordWithFlags(event(index).get(), stream, cudaEventRecordExternal));
}

double ChainTimer::between(std::size_t from, std::size_t to) {
  float ms = 0;
  DBO_CUDA_CHECK(cudaEventElapsedTime(&ms, event(from).get(), event(to).get()));
  return static_cast<double>(ms) * 1000;
}

void ChainTimer::run(const Enqueue& work) {
  group_.barrier();
  DBO_CUDA_CHECK(cudaEventRecord(fork_.get(), stream()));
  for (const cudaStream_t side : sides_) DBO_CUDA_CHECK(cudaStreamWaitEvent(side, fork_.get(), 0));
  work(stream());
  for (std::size_t i = 0; i < sides_.size(); ++i) {
    DBO_CUDA_CHECK(cudaEventRecord(side_joins_[i].get(), sides_[i]));
    DBO_CUDA_CHECK(cudaStreamWaitEvent(stream(), side_joins_[i].get(), 0));
  }
  await(stream(), kReplayDeadline, "a step that fills the buffers");
}

Graph ChainTimer::record(const std::function<void()>& enqueue) {
  DBO_CUDA_CHECK(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeRelaxed));
  try {
    DBO_CUDA_CHECK(cudaEventRecord(fork_.get(), stream()));
    for (const cudaStream_t side : sides_) DBO_CUDA_CHECK(cudaStreamWaitEvent(side, fork_.get(), 0));
    enqueue();
    for (std::size_t i = 0; i < sides_.size(); ++i) {
      DBO_CUDA_CHECK(cudaEventRecord(side_joins_[i].get(), sides_[i]));
      DBO_CUDA_CHECK(cudaStreamWaitEvent(stream(), side_joins_[i].get(), 0));
    }
  } catch (...) {
    cudaGraph_t broken = nullptr;
    (void)cudaStreamEndCapture(stream(), &broken);
    if (broken != nullptr) (void)cudaGraphDestroy(broken);
    (void)cudaGetLastError();
    throw;
  }
  cudaGraph_t graph = nullptr;
  DBO_CUDA_CHECK(cudaStreamEndCapture(stream(), &graph));
  return Graph::adopt(graph);
}

std::optional<double> ChainTimer::eager_extra(const Enqueue& work, const Enqueue& hold, const RepeatRule& rule) {
  const GraphExec graph = capture([&] {
    mark(0, stream());
    work(stream());
    mark(1, stream());
  });
  bool in_time = true;
  std::vector<double> extra;
  for (int i = 0; i <= rule.least; ++i) {
    group_.barrier();
    DBO_CUDA_CHECK(cudaGraphLaunch(graph.get(), stream()));
    await(stream(), kReplayDeadline, "a measured graph");
    hold(stream());
    DBO_CUDA_CHECK(cudaEventRecord(event(2).get(), stream()));
    work(stream());
    in_time = in_time && cudaEventQuery(event(2).get()) == cudaErrorNotReady;
    DBO_CUDA_CHECK(cudaEventRecord(event(3).get(), stream()));
    await(stream(), kReplayDeadline, "measured launches");
    if (i > 0) extra.push_back(between(2, 3) - between(0, 1));  // the first warms up
  }
  if (!in_time) return std::nullopt;
  return timing_of(std::move(extra)).median_us;
}

int ChainTimer::count_kernels(const Enqueue& work) {
  const Graph graph = record([&] { work(stream()); });
  std::size_t count = 0;
  DBO_CUDA_CHECK(cudaGraphGetNodes(graph.get(), nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count);
  DBO_CUDA_CHECK(cudaGraphGetNodes(graph.get(), nodes.data(), &count));
  int kernels = 0;
  for (const cudaGraphNode_t node : nodes) {
    // Stream memory operations are nodes that this interface has no type for.
    cudaGraphNodeType type{};
    const bool known = cudaGraphNodeGetType(node, &type) == cudaSuccess;
    if (!known) (void)cudaGetLastError();
    kernels += known && type == cudaGraphNodeTypeKernel ? 1 : 0;
  }
  return kernels;
}

GraphExec ChainTimer::capture(const std::function<void()>& enqueue) {
  const Graph graph = record(enqueue);
  GraphExec exec = GraphExec::create(graph, stream());
  await(stream(), kReplayDeadline, "uploading a graph");
  return exec;
}

int ChainTimer::most_of_ranks(double mine) {
  double most = mine;
  for (const std::string& text : group_.gather(std::to_string(mine))) most = std::max(most, std::stod(text));
  return static_cast<int>(most);
}

int ChainTimer::repeat(const GraphExec& graph, const RepeatRule& rule, const std::function<double()>& read) {
  std::vector<double> seen;
  double spent_ms = 0;
  int ahead = 0;
  std::vector<double> mhz;
  for (int i = -1; i < rule.most; ++i) {
    group_.barrier();
    // Of this replay alone: between two of them the GPU rests, and its clock rises at once.
    clock_.begin();
    for (int k = 0; k <= ahead; ++k) DBO_CUDA_CHECK(cudaGraphLaunch(graph.get(), stream()));
    await(stream(), kReplayDeadline, "a measured graph");
    const double clock = clock_.end();
    const double us = read();
    if (i < 0) {  // warms up
      constexpr double kMostAhead = 16;
      ahead = most_of_ranks(std::ceil(std::min(rule.busy_us / std::max(us, 1.0), kMostAhead)));
      continue;
    }
    seen.push_back(us);
    mhz.push_back(clock);
    spent_ms += us / 1000 * (1 + ahead);
    if (i + 1 < rule.least) continue;
    const Timing timing = timing_of(seen);
    const bool enough = timing.spread_us <= rule.spread * timing.median_us || spent_ms > rule.most_ms;
    // All ranks go on until the last one has enough.
    const std::vector<std::string> all = group_.gather(enough ? "1" : "0");
    if (std::all_of(all.begin(), all.end(), [](const std::string& one) { return one == "1"; })) break;
  }
  mhz_ = timing_of(std::move(mhz)).median_us;
  return static_cast<int>(seen.size());
}

Timing ChainTimer::chain(const std::vector<Enqueue>& links, int count, const Enqueue& lead, const RepeatRule& rule) {
  const GraphExec graph = capture([&] {
    if (lead) lead(stream());
    mark(0, stream());
    for (int i = 0; i < count; ++i) links[static_cast<std::size_t>(i) % links.size()](stream());
    mark(1, stream());
  });
  std::vector<double> us;
  bool warm = false;
  repeat(graph, rule, [&] {
    const double time = between(0, 1);
    if (warm) us.push_back(time);
    warm = true;
    return time;
  });
  return timing_of(std::move(us), mhz_).per(count);
}

std::vector<Timing> ChainTimer::links(const std::vector<Enqueue>& links, int passes, const Enqueue& lead,
                                      const RepeatRule& rule) {
  const std::size_t n = links.size();
  const GraphExec graph = capture([&] {
    if (lead) lead(stream());
    mark(0, stream());
    for (std::size_t i = 0; i < n * static_cast<std::size_t>(passes); ++i) {
      links[i % n](stream());
      mark(i + 1, stream());
    }
  });
  std::vector<std::vector<double>> us(n);
  bool warm = false;
  repeat(graph, rule, [&] {
    for (std::size_t i = 0; warm && i < n * static_cast<std::size_t>(passes); ++i)
      us[i % n].push_back(between(i, i + 1));
    warm = true;
    return between(0, n * static_cast<std::size_t>(passes));
  });
  std::vector<Timing> timings;
  for (std::vector<double>& one : us) timings.push_back(timing_of(std::move(one), mhz_));
  return timings;
}

ChainTimer::Beside ChainTimer::beside(const std::vector<Enqueue>& compute, int rounds, const std::vector<Enqueue>& comm,
                                      int passes, double alone_mhz, const RepeatRule& rule) {
  const std::size_t ops = compute.size(), all_ops = ops * static_cast<std::size_t>(rounds);
  const std::size_t n = comm.size(), all = n * static_cast<std::size_t>(passes);
  const std::size_t first = all_ops + 1;  // up to there the events are computation's
  const GraphExec graph = capture([&] {
    // A pass ahead brings the ranks together.
    for (const Enqueue& link : comm) link(stream());
    DBO_CUDA_CHECK(cudaEventRecord(join_.get(), stream()));
    DBO_CUDA_CHECK(cudaStreamWaitEvent(other(), join_.get(), 0));
    mark(first, other());
    for (std::size_t i = 0; i < all; ++i) {
      comm[i % n](other());
      mark(first + i + 1, other());
    }
    mark(0, stream());
    for (std::size_t i = 0; i < all_ops; ++i) {
      compute[i % ops](stream());
      mark(i + 1, stream());
    }
    DBO_CUDA_CHECK(cudaEventRecord(join_.get(), other()));
    DBO_CUDA_CHECK(cudaStreamWaitEvent(stream(), join_.get(), 0));
  });
  Beside out;
  out.covered = true;
  std::vector<std::vector<double>> compute_us(ops), comm_us(n);
  std::vector<double> shares;
  bool warm = false;
  repeat(graph, rule, [&] {
    if (warm) {
      // A pass runs ahead of the first event.
      const double comm_us_in_all = between(first, first + all) * (1 + 1.0 / passes);
      shares.push_back(std::min(between(0, all_ops) / std::max(comm_us_in_all, 1.0), 1.0));
      for (std::size_t i = 0; i < all_ops; ++i) compute_us[i % ops].push_back(between(i, i + 1));
      out.covered = out.covered && between(all_ops, first + all) >= 0;
      for (std::size_t i = 0; i < all; ++i) {
        if (between(0, first + i) >= 0 && between(first + i + 1, all_ops) >= 0)
          comm_us[i % n].push_back(between(first + i, first + i + 1));
      }
    }
    warm = true;
    return between(0, all_ops);
  });
  // A kernel that counted cycles here would take registers that a grouped GEMM needs, and with them an SM.
  const double share = timing_of(std::move(shares)).median_us;
  const double clock = share > 0 && alone_mhz > mhz_ ? (mhz_ - (1 - share) * alone_mhz) / share : mhz_;
  for (std::vector<double>& one : compute_us) out.compute.push_back(timing_of(std::move(one), clock));
  for (std::vector<double>& one : comm_us) out.comm.push_back(timing_of(std::move(one), clock));
  return out;
}

}  // namespace dbo::validate
