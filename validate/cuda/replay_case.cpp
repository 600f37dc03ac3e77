#include "validate/cuda/replay_case.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <optional>

#include "kernels/stand_in/stand_in.h"
#include "runtime/cuda/check.h"
#include "runtime/cuda/moe_table.h"
#include "runtime/cuda/process.h"
#include "runtime/cuda/stand_in_table.h"
#include "sim/base/error.h"
#include "validate/cuda/step_audit.h"
#include "validate/fault.h"
#include "validate/faulty_device.h"

namespace dbo::validate {

using runtime::HostGroup;
using runtime::MoeTable;
using runtime::RankReplay;
using runtime::RankTimes;
using runtime::TraceMode;

std::shared_ptr<void> LiveReplays::add(int rank, RankReplay* replay) {
  const std::lock_guard lock(mutex_);
  live_.emplace_back(rank, replay);
  return {replay, [this](RankReplay* gone) {
            const std::lock_guard inner(mutex_);
            std::erase_if(live_, [&](const auto& one) { return one.second == gone; });
          }};
}

void LiveReplays::stop(int rank) {
  const std::lock_guard lock(mutex_);
  for (const auto& [who, replay] : live_) {
    if (who == rank) replay->stop(std::make_exception_ptr(runtime::Stopped{}));
  }
}

namespace {

constexpr runtime::GraphKey kKey{};

// Steps are repeated up to so often while their quartiles are further apart than this.
constexpr int kMostIterations = 60;
constexpr double kSure = 0.01, kMostUs = 4e6;

double microseconds(Ns time) {
  return static_cast<double>(time.count()) / 1000;
}

float from_bf16(std::uint16_t bits) {
  const std::uint32_t wide = std::uint32_t{bits} << 16;
  float value = 0;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

/// Largest over the tokens both have of ||a - b|| / ||b||. Tokens only one of them has (the end of a prompt's first
/// part) are left out.
void compare_logits(const runtime::MoeLogits& split, const runtime::MoeLogits& unsplit, NumericsResult& result) {
  const auto width = static_cast<std::size_t>(unsplit.width);
  std::size_t not_finite = 0;
  for (std::size_t row = 0; row < split.token.size(); ++row) {
    const auto other = std::find(unsplit.token.begin(), unsplit.token.end(), split.token[row]);
    if (other == unsplit.token.end()) continue;
    const std::uint16_t* a = split.bf16.data() + row * width;
    const std::uint16_t* b = unsplit.bf16.data() + static_cast<std::size_t>(other - unsplit.token.begin()) * width;
    double difference = 0, norm = 0;
    for (std::size_t i = 0; i < width; ++i) {
      const double x = from_bf16(a[i]), y = from_bf16(b[i]);
      difference += (x - y) * (x - y);
      norm += y * y;
    }
    ++result.tokens;
    if (!std::isfinite(difference) || !std::isfinite(norm) || norm == 0) {
      ++not_finite;
      continue;
    }
    result.split_error = std::max(result.split_error, std::sqrt(difference / norm));
  }
  if (not_finite > 0)
    result.problems.push_back("numerics: " + std::to_string(not_finite) +
                              " tokens have logits that are no numbers, or all zero");
  if (result.tokens == 0) result.problems.emplace_back("numerics: split and un-split steps have no token in common");
  if (!(result.split_error <= result.split_bound)) {
    char text[160];
    (void)std::snprintf(text, sizeof text, "numerics: split and un-split logits differ by %.4f, allowed %.4f",
                        result.split_error, result.split_bound);
    result.problems.emplace_back(text);
  }
}

/// What events around a launch add to its time: launches of a known length, with and without events between them.
double event_cost_us(HostGroup& group, const kernels::TimerProbe& timer, double gap_us) {
  DBO_CUDA_CHECK(kernels::prepare_stand_in());
  const runtime::DeviceBuffer memory(kernels::mailbox_bytes(1, 1) + sizeof(kernels::OpStamp));
  kernels::StandInArgs args;
  args.mailbox = memory.get();
  args.peers[0] = memory.get();
  args.calls = 1;
  args.stamp = reinterpret_cast<kernels::OpStamp*>(memory.get() + kernels::mailbox_bytes(1, 1));
  args.duration_ns = 10'000;
  args.whole_sm = false;
  if (timer.tick_ns > 1000) args.cycles_per_1024_ns = timer.cycles_per_1024_ns;
  const Enqueue launch = [&](cudaStream_t stream) { DBO_CUDA_CHECK(kernels::launch_stand_in(args, stream)); };
  ChainTimer chain(group, {});
  const RepeatRule rule{.least = 5, .most = 5};
  const double plain = chain.chain({launch}, 48, launch, rule).median_us - gap_us;
  return std::max(chain.links({launch}, 48, launch, rule)[0].median_us - plain, 0.0);
}

/// The rank's whole batch: the un-split plan's one ubatch.
const UbatchLoad& whole_batch(const Plan& unsplit, int rank) {
  const RankClass& rank_class = unsplit.classes[static_cast<std::size_t>(unsplit.class_of(rank))];
  return unsplit.loads[static_cast<std::size_t>(rank_class.load)].ubatches.front();
}

/// A fault of one rank's split step, and what it needs on the GPU.
class PlantedFault {
 public:
  PlantedFault(std::string_view code, const PredictedWay& way, int plan_rank)
      : linear_(linearise(way.split.plan, way.split.plan.class_of(plan_rank))),
        fault_(plan_fault(code, way.split.plan, linear_, Ns{way.unsplit.result.step_ns})) {}

  const Fault& fault() const { return fault_; }

  void plant(runtime::MoeOptions& options, runtime::ReplayOptions& replay) {
    options.memory.share_rows = fault_.share_rows;
    options.memory.route_padding = fault_.route_padding;
    replay.given = [this](const Linear& planned) { return given_order(planned, fault_); };
    replay.edit = [this](runtime::LaunchTable& table) { lengthen(table); };
    replay.wrap = [this](runtime::Device& gpu, const RankReplay& rank) {
      return std::make_unique<FaultyDevice>(gpu, linear_, fault_, overwriter(rank));
    };
  }

 private:
  /// Launches that fill the time, in front of an op's own.
  void lengthen(runtime::LaunchTable& table) {
    DBO_CUDA_CHECK(kernels::prepare_stand_in());
    int gpu = 0, sms = 0;
    DBO_CUDA_CHECK(cudaGetDevice(&gpu));
    DBO_CUDA_CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, gpu));
    const kernels::TimerProbe timer = runtime::probe_timer();
    memory_ = runtime::DeviceBuffer(kernels::mailbox_bytes(1, 1));
    stamps_ = runtime::DeviceBuffer(fault_.longer.size() * sizeof(kernels::OpStamp));
    std::size_t used = 0;
    for (const auto& [op, time] : fault_.longer) {
      kernels::StandInArgs args;
      args.mailbox = memory_.get();
      args.peers[0] = memory_.get();
      args.calls = 1;
      args.stamp = stamps_.as<kernels::OpStamp>() + used++;
      args.duration_ns = static_cast<std::uint64_t>(time.count());
      args.blocks = fault_.takes_all_sms ? sms : 1;
      args.whole_sm = fault_.takes_all_sms;
      if (timer.tick_ns > 1000) args.cycles_per_1024_ns = timer.cycles_per_1024_ns;
      auto& enqueue = table.ops[op].enqueue;
      enqueue = [args, own = std::move(enqueue)](cudaStream_t stream) {
        DBO_CUDA_CHECK(kernels::launch_stand_in(args, stream));
        own(stream);
      };
    }
  }

  /// Zeroes what the op has written: numbers that nobody trips over.
  std::function<void()> overwriter(const RankReplay& rank) const {
    if (!fault_.freed_after) return {};
    const auto& memory = dynamic_cast<const MoeTable&>(rank.source()).memory();
    const cudaStream_t stream = rank.lane(linear_.ops[*fault_.freed_after].lane);
    std::vector<std::pair<std::byte*, std::size_t>> freed;
    for (const runtime::ArenaSlot* slot : memory.arena().begun_by(*fault_.freed_after))
      freed.emplace_back(memory.activations() + slot->offset, memory.slot_used(slot->use));
    DBO_CHECK(!freed.empty(), "an op that writes nothing of its own cannot lose it");
    return [stream, freed] {
      for (const auto& [start, bytes] : freed) DBO_CUDA_CHECK(cudaMemsetAsync(start, 0, bytes, stream));
    };
  }

  Linear linear_;
  Fault fault_;
  runtime::DeviceBuffer memory_, stamps_;
};

/// Both plans of one rank.
class Pair {
 public:
  Pair(HostGroup& group, int gpu, const ValidationCase& validated, runtime::HangGuard& guard, LiveReplays& live,
       const ReplayRules& rules)
      : group_(group), case_(validated), rules_(rules), gpu_(gpu) {
    runtime::start_gpu(gpu);
    const PredictedWay& way = validated.ways.front();
    const bool nccl = way.split.plan.transport == Transport::Nccl;
    if (group.size() > 1 && (rules.windows || nccl)) comm_ = runtime::NcclComm::create(group);
    rank_ = validated.emulated ? 0 : group.rank();
    anchors_ = std::make_unique<AnchorTimer>(group);
    clock_ = std::make_unique<ClockMeter>();
    unsplit_ = make(way.unsplit, guard, {}, nullptr);
    unsplit_live_ = live.add(group.rank(), unsplit_.get());
    // Layer by layer the same weights and caches.
    if (!rules.inject.empty()) fault_ = std::make_unique<PlantedFault>(rules.inject, way, rank_);
    split_ = make(way.split, guard, table(*unsplit_).memory().rings(), fault_.get());
    split_live_ = live.add(group.rank(), split_.get());
  }
  MeasuredCase run() {
    group_.limit(rules_.deadline);
    MeasuredCase out;
    if (fault_) out.injected = fault_->fault().code + ": " + fault_->fault().what;
    out.before = anchors_->measure();
    const double gap_us = microseconds(case_.ways.front().split.costs.host.node_gap);
    event_us_ = event_cost_us(group_, split_->timer(), gap_us);
    out.numerics = numerics();
    out.ways.resize(case_.ways.size());
    if (rules_.announce && group_.rank() == 0) {
      std::fprintf(stderr, "# replays: %d steps of each plan, %zu way%s\n", rules_.iterations, out.ways.size(),
                   out.ways.size() == 1 ? "" : "s");
    }
    interleave(out.ways);
    for (std::size_t w = 0; w < out.ways.size(); ++w) trace(w, out.ways[w]);
    out.after = anchors_->measure();
    out.how.push_back(table(*split_).how());
    return out;
  }

 private:
  std::unique_ptr<RankReplay> make(const PredictedPlan& predicted, runtime::HangGuard& guard,
                                   std::optional<runtime::MoeRings> rings, PlantedFault* fault) {
    runtime::MoeOptions options;
    options.wires = predicted.wires;
    options.memory.rings = rings;
    options.memory.whole = whole_batch(case_.ways.front().unsplit.plan, rank_);
    runtime::ReplayOptions replay;
    replay.gpu = gpu_;
    replay.write_progress = false;
    replay.deadline = std::min(replay.deadline, rules_.deadline);
    replay.abort = [this] {
      (void)comm_.abort_within(Ns{3'000'000'000});
      if (rules_.processes) group_.abort();
    };
    if (fault != nullptr) fault->plant(options, replay);
    replay.spin = runtime::default_spin(static_cast<int>(predicted.plan.threads.size()) * group_.size());
    return std::make_unique<RankReplay>(group_, predicted.plan, rank_,
                                        runtime::moe_source(comm_ ? &comm_ : nullptr, options), guard, replay);
  }

  static const MoeTable& table(const RankReplay& replay) { return dynamic_cast<const MoeTable&>(replay.source()); }

  static void run_once(RankReplay& replay, bool graph) {
    graph ? static_cast<void>(replay.run_graph(kKey)) : replay.run_eager();
  }

  bool has_graph() const {
    return std::any_of(case_.ways.begin(), case_.ways.end(), [](const PredictedWay& way) { return way.graph; });
  }

  /// Eager, graph and repeats of one plan give the same bits; split against un-split stays within its bound. Every
  /// rank must agree.
  NumericsResult numerics() {
    NumericsResult result;
    result.split_bound = split_bound(case_.config.model);
    for (RankReplay* replay : {unsplit_.get(), split_.get()}) {
      replay->set_trace(TraceMode::Stamps);
      std::vector<std::uint64_t> hashes;
      for (int i = 0; i < 2; ++i) {
        replay->run_eager();
        hashes.push_back(table(*replay).output_hash());
      }
      if (has_graph()) {
        replay->capture(kKey);
        for (int i = 0; i < 2; ++i) {
          replay->run_graph(kKey);
          hashes.push_back(table(*replay).output_hash());
        }
      }
      const char* const plan = replay == split_.get() ? "split" : "un-split";
      for (std::size_t i = 1; i < hashes.size(); ++i) {
        if (hashes[i] == hashes[0]) continue;
        result.same_bits = false;
        result.problems.push_back(std::string("numerics: the ") + plan + " plan gives other bits " +
                                  (i < 2 ? "when repeated" : "by graph than eagerly"));
        break;
      }
      audit(*replay, hashes[0], result);
    }
    // The last steps of both plans were audited ones.
    compare_logits(table(*split_).logits(), table(*unsplit_).logits(), result);
    return merged(std::move(result));
  }

  /// One step op by op, on poison.
  void audit(RankReplay& replay, std::uint64_t expected, NumericsResult& result) {
    const bool split = &replay == split_.get();
    const PredictedPlan& predicted = split ? case_.ways.front().split : case_.ways.front().unsplit;
    StepAudit audit(predicted.plan, replay.linear(), table(replay));
    replay.observe(audit);
    replay.run_eager();  // begins with a barrier
    replay.set_trace(TraceMode::Stamps);
    result.audited += audit.ops();
    const std::vector<std::string> found = audit.problems();
    result.problems.insert(result.problems.end(), found.begin(), found.end());
    if (table(replay).output_hash() == expected) return;
    result.same_bits = false;
    result.problems.push_back(std::string("numerics: the ") + (split ? "split" : "un-split") +
                              " plan gives other bits op by op on poisoned memory: an op reads what is not there");
  }

  /// The worst of all ranks, with every rank's problems once.
  NumericsResult merged(NumericsResult mine) {
    const auto all = [&](double value) {
      double most = value;
      for (const std::string& text : group_.gather(std::to_string(value))) most = std::max(most, std::stod(text));
      return most;
    };
    mine.split_error = all(mine.split_error);
    mine.same_bits = all(mine.same_bits ? 0 : 1) < 0.5;
    std::string problems;
    for (const std::string& problem : mine.problems) problems += problem + "\n";
    mine.problems.clear();
    const std::vector<std::string> texts = group_.gather(problems);
    for (std::size_t rank = 0; rank < texts.size(); ++rank) {
      for (std::size_t begin = 0; begin < texts[rank].size();) {
        const std::size_t end = texts[rank].find('\n', begin);
        mine.problems.push_back(texts[rank].substr(begin, end - begin) + " (GPU " + std::to_string(rank) + ")");
        begin = end + 1;
      }
    }
    return mine;
  }

  /// The slowest rank's time of each step.
  std::vector<double> slowest(const std::vector<double>& mine) {
    std::string text(mine.size() * sizeof(double), '\0');
    std::memcpy(text.data(), mine.data(), text.size());
    std::vector<double> most = mine;
    for (const std::string& theirs : group_.gather(text)) {
      std::vector<double> values(mine.size());
      std::memcpy(values.data(), theirs.data(), std::min(theirs.size(), text.size()));
      for (std::size_t i = 0; i < most.size(); ++i) most[i] = std::max(most[i], values[i]);
    }
    return most;
  }

  /// All plans and ways in turn, in an order drawn anew every time: what the clock does hits all of them, whatever the
  /// period of its swings. Until the medians are sure, within bounds.
  void interleave(std::vector<MeasuredWay>& ways) {
    struct Lane {
      RankReplay* replay;
      bool graph;
      MeasuredPlan* to;
    };
    std::vector<Lane> lanes;
    for (std::size_t w = 0; w < ways.size(); ++w) {
      ways[w].graph = case_.ways[w].graph;
      lanes.push_back({split_.get(), ways[w].graph, &ways[w].split});
      lanes.push_back({unsplit_.get(), ways[w].graph, &ways[w].unsplit});
    }
    std::uint32_t state = 1;
    for (int i = -rules_.warmup; i < rules_.iterations || (i < most_iterations() && !are_sure(ways)); ++i) {
      // The same order on every rank: Fisher and Yates, by a congruential generator's upper bits.
      for (std::size_t left = lanes.size(); left > 1; --left) {
        state = state * 1664525u + 1013904223u;
        std::swap(lanes[left - 1], lanes[(state >> 16) % left]);
      }
      for (const Lane& lane : lanes) {
        clock_->begin();
        run_once(*lane.replay, lane.graph);
        const double mhz = clock_->end();
        if (i < 0) continue;
        lane.to->clocks_mhz.push_back(mhz);
        lane.to->steps_us.push_back(microseconds(lane.replay->event_time()));
        lane.to->host_us.push_back(microseconds(lane.replay->host_time()));
      }
    }
    for (const Lane& lane : lanes) {
      lane.to->steps_us = slowest(lane.to->steps_us);
      // The slowest GPU's clock: the others wait for it.
      std::vector<double> periods;
      for (const double mhz : lane.to->clocks_mhz) periods.push_back(mhz > 0 ? 1 / mhz : 0);
      lane.to->clocks_mhz.clear();
      for (const double period : slowest(periods)) lane.to->clocks_mhz.push_back(period > 0 ? 1 / period : 0);
    }
  }

  int most_iterations() const { return std::max(rules_.iterations, std::min(3 * rules_.iterations, kMostIterations)); }

  /// Whether the first rank has all steps' quartiles within bounds, or has spent enough on them; the ranks agree.
  bool are_sure(const std::vector<MeasuredWay>& ways) {
    bool sure = true;
    double spent_us = 0;
    for (const MeasuredWay& way : ways) {
      for (const MeasuredPlan* plan : {&way.split, &way.unsplit}) {
        const Figure figure = figure_of(plan->steps_us);
        sure = sure && figure.relative_spread() < kSure;
        spent_us += figure.median_us * figure.count;
      }
    }
    return group_.gather(sure || spent_us > kMostUs ? "1" : "0").front() == "1";
  }

  void trace(std::size_t w, MeasuredWay& way) {
    trace_plan(*split_, case_.ways[w].split, way.graph, way.split);
    trace_plan(*unsplit_, case_.ways[w].unsplit, way.graph, way.unsplit);
  }

  void trace_plan(RankReplay& replay, const PredictedPlan& predicted, bool graph, MeasuredPlan& measured) {
    replay.set_trace(TraceMode::Light);
    if (graph) replay.capture(kKey);
    // A GPU that stood still while the graph was made runs faster for a while than in a row of steps.
    for (int i = 0; i < rules_.warmup; ++i) run_once(replay, graph);
    std::vector<RankTimes> traced;
    std::vector<double> steps;
    for (int i = 0; i < rules_.traced; ++i) {
      clock_->begin();
      run_once(replay, graph);
      measured.traced_mhz.push_back(clock_->end());
      traced.push_back(corrected(replay.light_times()));
      steps.push_back(microseconds(replay.event_time()));
    }
    replay.set_trace(TraceMode::Stamps);
    steps = slowest(steps);
    // The step nearest to the median, the same on all ranks.
    std::vector<std::size_t> order(steps.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return steps[a] < steps[b]; });
    const std::size_t chosen = order[order.size() / 2];
    measured.tracing_us = steps[chosen] - figure_of(measured.steps_us).median_us;
    for (std::size_t op = 0; op < replay.linear().ops.size(); ++op) {
      std::vector<double> us;
      for (const RankTimes& times : traced) {
        const runtime::OpTime& t = times.ops[op];
        if (t.ran) us.push_back(static_cast<double>(t.end_ns - std::max(t.begin_ns, t.ready_ns)) / 1000);
      }
      measured.op_us.push_back(figure_of(us).median_us);
      std::vector<double> entries;
      for (const RankTimes& times : traced) {
        const runtime::OpTime& t = times.ops[op];
        if (t.ran && t.entered_ns != 0) entries.push_back(static_cast<double>(t.entered_ns - t.begin_ns) / 1000);
      }
      measured.entry_us.push_back(entries.empty() ? -1 : std::max(0.0, figure_of(entries).median_us));
    }
    assemble(predicted.plan, traced[chosen], measured);
  }

  /// Events stand outside of the kernels: their own time is taken off both ends.
  RankTimes corrected(RankTimes times) const {
    const auto half = static_cast<std::int64_t>(event_us_ * 500);
    for (runtime::OpTime& t : times.ops) {
      if (!t.ran) continue;
      // A nanosecond stays: an op of no length would have no slice.
      const std::int64_t cut = std::min(half, std::max<std::int64_t>(t.end_ns - t.begin_ns - 1, 0) / 2);
      t.begin_ns += cut;
      t.end_ns -= cut;
    }
    return times;
  }

  void assemble(const Plan& plan, const RankTimes& mine, MeasuredPlan& measured) {
    const std::vector<std::string> all = group_.gather(runtime::encode_times(mine));
    if (group_.rank() != 0) return;
    std::vector<RankTimes> ranks;
    for (std::size_t r = 0; r < static_cast<std::size_t>(case_.ranks_replayed()); ++r)
      ranks.push_back(runtime::decode_times(all[r]));
    std::vector<Linear> orders;
    for (const RankTimes& rank : ranks) orders.push_back(linearise(plan, plan.class_of(rank.rank)));
    std::vector<const Linear*> pointers;
    for (const Linear& order : orders) pointers.push_back(&order);
    measured.trace = runtime::measured_trace(plan, pointers, ranks);
    measured.trace.metadata.set("op_starts", "lanes");  // events fire when their lane gets there
  }

  HostGroup& group_;
  const ValidationCase& case_;
  ReplayRules rules_;
  int gpu_ = 0, rank_ = 0;
  double event_us_ = 0;
  runtime::NcclComm comm_;
  std::unique_ptr<AnchorTimer> anchors_;
  std::unique_ptr<PlantedFault> fault_;
  std::unique_ptr<ClockMeter> clock_;
  std::unique_ptr<RankReplay> unsplit_, split_;
  std::shared_ptr<void> unsplit_live_, split_live_;
};

}  // namespace

MeasuredCase replay_case(HostGroup& group, int gpu, const ValidationCase& validated, runtime::HangGuard& guard,
                         LiveReplays& live, const ReplayRules& rules) {
  Pair pair(group, gpu, validated, guard, live, rules);
  const auto run = [&] {
    MeasuredCase out = pair.run();
    group.barrier();
    return out;
  };
  if (!rules.processes) return run();
  // Nobody stops the other processes, and destructors would wait for kernels whose peer is gone: the guard says where
  // this rank's lanes stand and leaves. The others miss it at their next barrier.
  try {
    return run();
  } catch (const CudaError& error) {
    guard.fail(error.what());
  } catch (const NcclError& error) {
    guard.fail(error.what());
  }
}

}  // namespace dbo::validate
