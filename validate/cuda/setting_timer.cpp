#include "validate/cuda/setting_timer.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "kernels/compute/clock_sample.h"
#include "kernels/stand_in/stand_in.h"
#include "runtime/cuda/check.h"
#include "sim/base/error.h"

namespace dbo::validate {
namespace {

// A chain this long makes what lies around it (the first launch, the events) less than half a percent.
constexpr double kChainUs = 800;
constexpr int kMostLinks = 96;
constexpr int kCommPasses = 16;
// Longer than any wire inside a machine, so that what a receive does afterwards shows alone.
constexpr double kLeastHoldUs = 40;
// Two GPUs of a kind clock up to a tenth apart.
constexpr double kLateShare = 0.15;

constexpr int kMostPasses = 160;
// A GPU that rests before a replay clocks higher for some milliseconds.
constexpr double kBusyUs = 15'000;
// At a power limit the clock swings with a period of some 300 ms.
constexpr double kThrottledMs = 300;
constexpr int kMostReplays = 40;
constexpr double kSteady = 0.01;
// Below two thirds of the time computation hardly gets faster.
constexpr int kRelaxedDuty = 67;

// After this long under load the clock no longer falls much.
constexpr double kWarmUpUs = 100'000;
// Longer than the host takes for a launch.
constexpr double kLaunchUs = 20;

/// A kernel that only lets time pass.
class Hold {
 public:
  explicit Hold(const kernels::TimerProbe& timer)
      : memory_(kernels::mailbox_bytes(1, 1) + sizeof(kernels::OpStamp)), timer_(timer) {
    DBO_CUDA_CHECK(kernels::prepare_stand_in());
  }
  Enqueue of(double us) const {
    kernels::StandInArgs args;
    args.mailbox = memory_.get();
    args.peers[0] = memory_.get();
    args.calls = 1;
    args.stamp = reinterpret_cast<kernels::OpStamp*>(memory_.get() + kernels::mailbox_bytes(1, 1));
    args.duration_ns = static_cast<std::uint64_t>(us * 1000);
    args.whole_sm = false;
    if (timer_.tick_ns > 1000) args.cycles_per_1024_ns = timer_.cycles_per_1024_ns;
    return [args](cudaStream_t stream) { DBO_CUDA_CHECK(kernels::launch_stand_in(args, stream)); };
  }

 private:
  runtime::DeviceBuffer memory_;
  kernels::TimerProbe timer_;
};

/// Pauses that count the cycles that pass: a GPU at its power limit clocks higher in them than beside them.
class Pauses {
 public:
  Enqueue add(double us) {
    const std::size_t slot = lengths_us_.size();
    DBO_CHECK(2 * (slot + 1) * sizeof(std::int64_t) <= counts_.bytes(), "more pauses than a step has");
    lengths_us_.push_back(std::max(us, 1.0));
    const kernels::ClockSampleArgs args{counts_.as<std::int64_t>() + 2 * slot,
                                        static_cast<std::int64_t>(1000 * lengths_us_.back())};
    return [args](cudaStream_t stream) { DBO_CUDA_CHECK(kernels::launch_clock_sample(args, stream)); };
  }
  /// The clock outside of the pauses, where `mhz` is that of all of `step_us`, one pass with its pauses; of the last
  /// pass.
  double clock_between(double mhz, double step_us) const {
    std::vector<std::int64_t> counts(2 * lengths_us_.size());
    DBO_CUDA_CHECK(
        cudaMemcpy(counts.data(), counts_.get(), counts.size() * sizeof(std::int64_t), cudaMemcpyDeviceToHost));
    double cycles = 0, us = 0;
    for (std::size_t i = 0; i < lengths_us_.size(); ++i) {
      cycles += static_cast<double>(counts[2 * i]);
      us += static_cast<double>(counts[2 * i + 1]) / 1000;
    }
    return step_us > us ? (mhz * step_us - cycles) / (step_us - us) : mhz;
  }

 private:
  static constexpr std::size_t kMost = 512;
  runtime::DeviceBuffer counts_{2 * kMost * sizeof(std::int64_t)};
  std::vector<double> lengths_us_;
};

class SettingTimer {
 public:
  SettingTimer(const RankBench& bench, const CalibrationPoints& points, const CalibrationSetting& setting,
               const RepeatRule& rule)
      : bench_(bench),
        setting_(setting),
        rule_(rule),
        plan_(setting_plan(points, setting)),
        // With fewer GPUs than ranks, each plays the first.
        rank_(bench.group.size() < plan_.world.ranks ? 0 : bench.group.rank()),
        linear_(linearise(plan_, plan_.class_of(rank_))),
        progress_(plan_.lanes.size()),
        hold_(bench.timer),
        gap_us_(static_cast<double>(bench.node_gap.count()) / 1000) {
    const runtime::RankSetup setup{bench.group, bench.placement, plan_, rank_, linear_,          progress_,
                                   bench.timer, bench.gpu,       0,     0,     Ns{5'000'000'000}};
    runtime::MoeOptions options;
    options.memory.least_sets = plan_.shape.layers - plan_.shape.dense_layers;
    table_ = std::make_unique<runtime::MoeTable>(setup, bench.comm, options);
    timer_ = std::make_unique<ChainTimer>(bench.group, table_->table().side_streams);
  }

  SettingFigures measure() {
    run_step(nullptr);
    time_host();
    warm_up();
    in_step();
    const bool comm = std::any_of(setting_.ops.begin(), setting_.ops.end(), is_comm);
    if (comm && plan_.find_op("D")) collectives();
    if (comm && plan_.find_op("D.send")) halves();
    if (!setting_.beside.empty()) beside();
    return {std::move(points_), std::move(host_), eager_gap()};
  }

 private:
  /// The launches of every op of a kind, in layer order: each reads the weights of its own layer. Attention of MoE
  /// layers alone, which have a gate.
  std::vector<Enqueue> links_of(OpKind kind) const {
    std::vector<Enqueue> links;
    for (std::size_t op = 0; op < linear_.ops.size(); ++op) {
      const LinearOp& one = linear_.ops[op];
      if (plan_.op(one.op).kind != kind) continue;
      if (one.layer >= 0 && kind != OpKind::FFN && !plan_.shape.is_moe_layer(one.layer)) continue;
      links.push_back(table_->table().ops[op].enqueue);
    }
    return links;
  }

  /// One whole step, so that every op finds what it would find in one. `host_us` by kind, if not null: time the host
  /// took to enqueue each op.
  void run_step(std::vector<std::vector<double>>* host_us) {
    timer_->run([&](cudaStream_t stream) {
      table_->table().begin(stream);
      for (const HostStep& step : linear_.host) {
        if (step.verb != Verb::Launch) continue;
        const auto begin = std::chrono::steady_clock::now();
        table_->table().ops[step.index].enqueue(stream);
        if (host_us == nullptr) continue;
        const auto kind = static_cast<std::size_t>(plan_.op(linear_.ops[step.index].op).kind);
        const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
        (*host_us)[kind].push_back(took.count());
      }
    });
  }

  /// Whole steps for a while: a GPU that has rested runs faster than in a server, by up to 10 %.
  void warm_up() {
    const Enqueue step = [&](cudaStream_t stream) {
      for (const HostStep& one : linear_.host) {
        if (one.verb == Verb::Launch) table_->table().ops[one.index].enqueue(stream);
      }
    };
    const RepeatRule once{.least = 1, .most = 1};
    const double us = std::max(timer_->chain({step}, 1, {}, once).median_us, 1.0);
    const int steps = agreed_int(static_cast<int>(std::ceil(kWarmUpUs / us)));
    const RepeatRule all{.least = steps, .most = steps, .most_ms = kWarmUpUs};
    (void)timer_->chain({step}, 1, {}, all);
  }

  void time_host() {
    std::vector<std::vector<double>> us(kOpKinds);
    run_step(&us);
    for (std::size_t kind = 0; kind < us.size(); ++kind) {
      if (us[kind].empty()) continue;
      const Timing timing = timing_of(us[kind]);
      host_.push_back({std::string(op_name(static_cast<OpKind>(kind))), timing.median_us, timing.repeats,
                       kernels_of(static_cast<OpKind>(kind))});
    }
  }

  int kernels_of(OpKind kind) {
    if (links_of(kind).empty()) return 1;
    if (!is_recv(kind)) return timer_->count_kernels(links_of(kind).front());
    // A receive may wait for what its send does beside the lane: a graph of it alone would have nothing to wait for.
    const OpKind send = kind == OpKind::DRecv ? OpKind::DSend : OpKind::CSend;
    return timer_->count_kernels(whole(one_pass({send, kind}))) - timer_->count_kernels(links_of(send).front());
  }

  /// Of a decode step's computation, where the host can be ahead of the GPU; 0 elsewhere.
  double eager_gap() {
    const bool own = std::find(setting_.ops.begin(), setting_.ops.end(), OpKind::A0) != setting_.ops.end();
    if (setting_.prefill || setting_.partition || !own || !table_->table().side_streams.empty()) return 0;
    const Enqueue step = [&](cudaStream_t stream) {
      for (std::size_t op = 0; op < linear_.ops.size(); ++op) {
        if (is_compute(plan_.op(linear_.ops[op].op).kind)) table_->table().ops[op].enqueue(stream);
      }
    };
    const int kernels = timer_->count_kernels(step);
    const double hold_us = kernels * kLaunchUs;
    const std::optional<double> extra = timer_->eager_extra(step, hold_.of(hold_us), rule_);
    return extra && kernels > 0 ? std::max(*extra / kernels, 0.0) : 0;
  }

  /// How many links make a chain long enough, of links that take about `us`; the same on all ranks.
  int links_for(double us, std::size_t least) {
    const int mine = std::clamp(static_cast<int>(std::ceil(kChainUs / std::max(us, 1.0))), 2, kMostLinks);
    int most = static_cast<int>(least);
    for (const std::string& text : bench_.group.gather(std::to_string(mine))) most = std::max(most, std::stoi(text));
    return most;
  }

  double rough_us(const std::vector<Enqueue>& links) {
    const RepeatRule once{.least = 1, .most = 1};
    return timer_->chain(links, static_cast<int>(links.size()), links.front(), once).median_us;
  }

  Timing chain(const std::vector<Enqueue>& links) {
    const int count = links_for(rough_us(links), links.size());
    Timing timing = timer_->chain(links, count, links.front(), rule_);
    timing.median_us = std::max(timing.median_us - gap_us_, 0.0);
    return timing;
  }

  /// Ops that compute, of one kind each, in the order of a step. Attention of MoE layers alone, which have a gate.
  struct InOrder {
    std::vector<OpKind> kinds;
    std::vector<Enqueue> links;
    std::vector<int> layers;
    std::vector<bool> counts;  ///< whether the op is one of those that a profile's points are of
  };
  /// Of all layers, or of the first `moe_layers` with experts.
  InOrder computation(int moe_layers = 0) const {
    InOrder out;
    std::vector<int> layers;
    for (const HostStep& step : linear_.host) {
      if (step.verb != Verb::Launch) continue;
      const std::size_t op = step.index;
      const LinearOp& one = linear_.ops[op];
      const OpKind kind = plan_.op(one.op).kind;
      if (!is_compute(kind)) continue;
      const bool moe = one.layer >= 0 && plan_.shape.is_moe_layer(one.layer);
      if (moe_layers > 0) {
        if (!moe) continue;
        // One ubatch may be in the next layer when the other is not.
        const bool seen = std::find(layers.begin(), layers.end(), one.layer) != layers.end();
        if (!seen && static_cast<int>(layers.size()) == moe_layers) continue;
        if (!seen) layers.push_back(one.layer);
      }
      out.kinds.push_back(kind);
      out.links.push_back(table_->table().ops[op].enqueue);
      out.layers.push_back(one.layer);
      out.counts.push_back(moe || one.layer < 0 || kind == OpKind::FFN);
    }
    return out;
  }

  /// Median over a kind's ops of what each took.
  static Timing of_kind(OpKind kind, const InOrder& order, const std::vector<Timing>& timings) {
    std::vector<double> us, spreads;
    Timing out;
    for (std::size_t i = 0; i < timings.size(); ++i) {
      if (order.kinds[i] != kind || !order.counts[i] || timings[i].repeats == 0) continue;
      us.push_back(timings[i].median_us);
      spreads.push_back(timings[i].spread_us);
      out.repeats += timings[i].repeats;
      out.mhz = timings[i].mhz;
    }
    out.median_us = timing_of(std::move(us)).median_us;
    out.spread_us = timing_of(std::move(spreads)).median_us;
    return out;
  }

  /// Computation in a step's order, layer after layer, timed from event to event: each op finds the caches, the code
  /// and the clock that the ops before it leave. In a chain of its own kind it would find better or worse of all three.
  /// Then the same with pauses, as exposed communication makes them: where power limits the clock, it is higher.
  void in_step() {
    const InOrder order = computation();
    RepeatRule rule = rule_;
    rule.busy_us = kBusyUs;
    const auto n = static_cast<double>(order.links.size());
    const Timing plain = timer_->chain(order.links, static_cast<int>(n), order.links.front(), rule);
    if (!bench_.quick) {
      rule.most = kMostReplays;
      rule.most_ms = kThrottledMs;
    }
    std::vector<Timing> apart = timer_->links(order.links, 1, order.links.front(), rule);
    // What events add shows in the sum, unless the clock moves more than that.
    step_events_us_ = hold_event_us();
    if (plain.spread_us <= kSteady * plain.median_us) {
      double all = 0;
      for (const Timing& one : apart) all += one.median_us;
      step_events_us_ = std::clamp(all / n - plain.median_us + gap_us_, 0.5 * step_events_us_, 2 * step_events_us_);
    }
    add_in_step(order, apart, 100);
    for (const OpKind kind : {OpKind::A0, OpKind::A1, OpKind::S, OpKind::MLP})
      layer_us_ += of_kind(kind, order, apart).median_us * static_cast<double>(plan_.loads.front().ubatches.size());
    shared_us_ = of_kind(OpKind::S, order, apart).median_us;
    if (bench_.quick) return;
    Pauses pauses;
    const auto [paused, are_pauses] = with_pauses(order, apart, pauses);
    rule.busy_us /= 2;
    const std::vector<Timing> all = timer_->links(paused, 1, paused.front(), rule);
    double step_us = 0;
    for (const Timing& one : all) step_us += one.median_us;
    std::vector<Timing> relaxed = without(are_pauses, all);
    for (Timing& one : relaxed) one.mhz = pauses.clock_between(one.mhz, step_us);
    add_in_step(order, std::move(relaxed), kRelaxedDuty);
  }

  void add_in_step(const InOrder& order, std::vector<Timing> apart, int duty) {
    for (Timing& one : apart) one.median_us = std::max(one.median_us - step_events_us_, 0.0);
    for (const OpKind kind : setting_.ops) {
      if (!is_compute(kind)) continue;
      const Timing timing = of_kind(kind, order, apart);
      if (timing.repeats > 0) add(op_name(kind), timing, "", duty);
    }
  }

  /// The same launches with a pause after every layer, such that they run kRelaxedDuty percent of the time; and which
  /// of them are pauses.
  std::pair<std::vector<Enqueue>, std::vector<bool>> with_pauses(const InOrder& order, const std::vector<Timing>& apart,
                                                                 Pauses& all) const {
    std::vector<Enqueue> links;
    std::vector<bool> pauses;
    double since = 0;
    for (std::size_t i = 0; i < order.links.size(); ++i) {
      links.push_back(order.links[i]);
      pauses.push_back(false);
      since += apart[i].median_us;
      const bool ends = i + 1 == order.links.size() || order.layers[i + 1] != order.layers[i];
      if (!ends) continue;
      links.push_back(all.add(since * (100.0 / kRelaxedDuty - 1)));
      pauses.push_back(true);
      since = 0;
    }
    return {std::move(links), std::move(pauses)};
  }
  static std::vector<Timing> without(const std::vector<bool>& pauses, const std::vector<Timing>& timings) {
    std::vector<Timing> out;
    for (std::size_t i = 0; i < timings.size(); ++i) {
      if (!pauses[i]) out.push_back(timings[i]);
    }
    return out;
  }

  /// What an event between two launches adds, the gap between them included: of launches that last as long as they are
  /// told.
  double hold_event_us() {
    const Enqueue hold = hold_.of(10);
    constexpr int kHolds = 48;
    const RepeatRule few{.least = 5, .most = 5};
    const double plain = timer_->chain({hold}, kHolds, hold, few).median_us;
    return std::max(timer_->links({hold}, kHolds, hold, few)[0].median_us - plain, 0.0) + gap_us_;
  }

  /// Comm kernels: dispatch and combine in turn, as the protocol wants them. The events between them take time; what
  /// they add shows in the sum against the same chain without them, and is taken off each.
  void collectives() {
    const std::vector<Enqueue> pass = one_pass({OpKind::D, OpKind::C});
    const double both = chained_pass(pass);
    std::vector<Timing> apart = timer_->links(pass, kCommPasses, whole(pass), rule_);
    correct(apart, both);
    add("D", apart[0], "");
    add("C", apart[1], "");
    pass_us_ = both + 2 * gap_us_;
    comm_events_us_ = events_us_;
    comm_mhz_ = apart[0].mhz;
  }

  /// Sends and receives: back to back, so that receives wait for the wire, and with a hold before each receive, so that
  /// they do not; the difference is the wire. What each takes itself is measured in a step, where its code is not at
  /// hand.
  void halves() {
    const std::vector<Enqueue> pass = one_pass({OpKind::DSend, OpKind::DRecv, OpKind::CSend, OpKind::CRecv});
    const double sum = chained_pass(pass);
    std::vector<Timing> waiting = timer_->links(pass, kCommPasses, whole(pass), rule_);
    correct(waiting, sum);
    const double hold_us = agreed(std::max({kLeastHoldUs, 2 * waiting[1].median_us, 2 * waiting[3].median_us}));
    const Enqueue hold = hold_.of(hold_us);
    const std::vector<Enqueue> held = {pass[0], hold, pass[1], pass[2], hold, pass[3]};
    std::vector<Timing> ready = timer_->links(held, kCommPasses, whole(pass), rule_);
    for (Timing& one : ready) one.median_us = std::max(one.median_us - events_us_, 0.0);
    add("D.wire", wire(waiting[1], ready[2]), "");
    add("C.wire", wire(waiting[3], ready[5]), "");
    // In a step a peer that clocks lower sends later by its part of a layer: that must be over, too.
    const Enqueue step_hold = hold_.of(agreed(std::max(hold_us, kLateShare * layer_us_)));
    const InOrder order = whole_step(step_hold);
    std::vector<Timing> apart = timer_->links(order.links, 1, step_hold, rule_);
    for (Timing& one : apart) one.median_us = std::max(one.median_us - step_events_us_, 0.0);
    for (const OpKind kind : {OpKind::DSend, OpKind::DRecv, OpKind::CSend, OpKind::CRecv})
      add(op_name(kind), of_kind(kind, order, apart), "");
    pass_us_ = sum + 4 * gap_us_;
    comm_events_us_ = events_us_;
    comm_mhz_ = waiting[0].mhz;
  }

  /// A step's launches in host order, a hold before each receive.
  InOrder whole_step(const Enqueue& hold) const {
    InOrder out;
    const auto push = [&](OpKind kind, const Enqueue& link, std::int32_t layer) {
      out.kinds.push_back(kind);
      out.links.push_back(link);
      out.layers.push_back(layer);
      out.counts.push_back(kind != OpKind::Other);
    };
    for (const HostStep& step : linear_.host) {
      if (step.verb != Verb::Launch) continue;
      const LinearOp& one = linear_.ops[step.index];
      const OpKind kind = plan_.op(one.op).kind;
      if (is_recv(kind)) push(OpKind::Other, hold, one.layer);
      push(kind, table_->table().ops[step.index].enqueue, one.layer);
    }
    return out;
  }

  /// From the send's end: the receive began a gap later.
  Timing wire(const Timing& waiting, const Timing& ready) const {
    return {std::max(waiting.median_us - ready.median_us, 0.0) + gap_us_, waiting.spread_us, waiting.repeats};
  }

  /// Computation while dispatches and combines run all along, and the reverse. On SMs set aside, or where
  /// communication needs none, whole layers compute; an un-split step has shared experts alone beside its exchanges.
  void beside() {
    if (pass_us_ <= 0) return;
    const bool whole_kernels = plan_.find_op("D").has_value();
    const std::vector<Enqueue> pass = whole_kernels
                                          ? one_pass({OpKind::D, OpKind::C})
                                          : one_pass({OpKind::DSend, OpKind::DRecv, OpKind::CSend, OpKind::CRecv});
    const bool layers = setting_.partition || plan_.sm.comm == 0;
    InOrder order;
    double once_us = 0, cold_us = 0;
    if (layers) {
      const int enough = agreed_int(static_cast<int>(std::ceil(4 * pass_us_ / std::max(layer_us_, 1.0))));
      const int here = plan_.shape.layers - plan_.shape.dense_layers;
      order = computation(std::clamp(enough, 2, std::max(here, 2)));
      once_us = layer_us_ * std::clamp(enough, 2, std::max(here, 2));
    } else {
      order.links = links_of(OpKind::S);
      order.kinds.assign(order.links.size(), OpKind::S);
      order.counts.assign(order.links.size(), true);
      // Behind its own kind an op finds its code at hand: in a step it does not.
      const Timing alone = chain(order.links);
      cold_us = std::max(shared_us_ - alone.median_us, 0.0);
      once_us = alone.median_us * static_cast<double>(order.links.size());
    }
    if (order.links.empty()) return;
    // Computation that lasts some passes, and communication that surely outlasts it, slowed down as both are.
    const int rounds = agreed_int(std::clamp(static_cast<int>(std::ceil(4 * pass_us_ / std::max(once_us, 1.0))), 1, 8));
    const int passes = agreed_int(
        std::clamp(static_cast<int>(std::ceil(2.2 * rounds * once_us / std::max(pass_us_, 1.0))) + 2, 6, kMostPasses));
    RepeatRule rule = rule_;
    if (layers) rule.busy_us = kBusyUs;
    ChainTimer::Beside both = timer_->beside(order.links, rounds, pass, passes, comm_mhz_, rule);
    std::string company;
    for (const OpKind kind : {OpKind::A0, OpKind::A1, OpKind::S, OpKind::MLP}) {
      if (std::find(order.kinds.begin(), order.kinds.end(), kind) == order.kinds.end()) continue;
      company += (company.empty() ? "" : "+") + std::string(op_name(kind));
    }
    for (Timing& one : both.compute) one.median_us = std::max(one.median_us - step_events_us_ + cold_us, 0.0);
    const bool covered = agreed_all(both.covered);
    for (const OpKind kind : setting_.beside) {
      const Timing timing = of_kind(kind, order, both.compute);
      if (covered && timing.repeats > 0) add(op_name(kind), timing, whole_kernels ? "D+C" : "D.send+C.send");
    }
    for (std::size_t i = 0; whole_kernels && i < both.comm.size(); ++i) {
      Timing one = both.comm[i];
      if (!agreed_all(one.repeats > 0)) continue;
      one.median_us = std::max(one.median_us - comm_events_us_, 0.0);
      add(i == 0 ? "D" : "C", one, company);
    }
  }

  std::vector<Enqueue> one_pass(const std::vector<OpKind>& kinds) const {
    std::vector<Enqueue> pass;
    for (const OpKind kind : kinds) pass.push_back(links_of(kind).front());
    return pass;
  }
  static Enqueue whole(const std::vector<Enqueue>& pass) {
    return [pass](cudaStream_t stream) {
      for (const Enqueue& link : pass) link(stream);
    };
  }

  /// Sum of a pass's ops, from a chain without events inside.
  double chained_pass(const std::vector<Enqueue>& pass) {
    const std::vector<Enqueue> link = {whole(pass)};
    const Timing timing = timer_->chain(link, links_for(rough_us(link), kCommPasses), link.front(), rule_);
    return timing.median_us - static_cast<double>(pass.size()) * gap_us_;
  }

  /// Takes the events' own time off; remembers it.
  void correct(std::vector<Timing>& apart, double sum_us) {
    double all = 0;
    for (const Timing& one : apart) all += one.median_us;
    events_us_ = (all - sum_us) / static_cast<double>(apart.size());
    for (Timing& one : apart) one.median_us = std::max(one.median_us - events_us_, 0.0);
  }

  /// The largest of what the ranks say.
  double agreed(double mine) {
    double most = mine;
    for (const std::string& text : bench_.group.gather(std::to_string(mine))) most = std::max(most, std::stod(text));
    return most;
  }
  int agreed_int(int mine) { return static_cast<int>(agreed(mine)); }
  bool agreed_all(bool mine) { return agreed(mine ? 0 : 1) < 0.5; }

  void add(std::string_view op, const Timing& timing, std::string beside, int duty = 100) {
    const auto kind = find_op_kind(op);
    const bool comm = is_comm(*kind);
    // What the events around it take more than was no measurement.
    if (comm && !agreed_all(timing.median_us > 0)) return;
    ProfilePoint point;
    point.op = op;
    point.beside = std::move(beside);
    point.duty = duty;
    point.tokens = setting_.tokens;
    point.precision = comm ? (is_dispatch(*kind) ? plan_.shape.dispatch : plan_.shape.combine)
                           : (kind == OpKind::MLP ? plan_.shape.expert_weights : plan_.shape.weights);
    if (comm) {
      point.transport = setting_.transport;
      point.ranks = setting_.ranks;
    }
    if (kind == OpKind::A0 || kind == OpKind::A1) {
      point.prefill = setting_.prefill;
      point.context = setting_.prefill ? setting_.context + 2 * setting_.cached : setting_.context;
    }
    if (kind == OpKind::MLP) mlp_rows(point);
    const bool comm_pool = comm && plan_.find_op("D").has_value();
    point.sms = comm_pool ? plan_.sm.comm : plan_.sm.compute;
    if (!point.beside.empty()) point.beside_sms = comm_pool ? plan_.sm.compute : plan_.sm.comm;
    point.median_us = timing.median_us;
    point.spread_us = timing.spread_us;
    point.repeats = std::max(timing.repeats, 1);
    point.sm_mhz = static_cast<int>(timing.mhz + 0.5);
    points_.push_back(std::move(point));
  }

  void mlp_rows(ProfilePoint& point) const {
    const Router router(plan_);
    const int layer = plan_.shape.dense_layers;
    point.transport = setting_.transport;
    point.experts = router.placement(layer).slots;
    // Balanced: as many rows arrive as the rank's own tokens make.
    point.tokens = setting_.tokens * router.top_k();
  }

  const RankBench& bench_;
  const CalibrationSetting& setting_;
  RepeatRule rule_;
  Plan plan_;
  int rank_;
  Linear linear_;
  runtime::HostWords progress_;
  Hold hold_;
  double gap_us_;
  std::unique_ptr<runtime::MoeTable> table_;
  std::unique_ptr<ChainTimer> timer_;
  double comm_mhz_ = 0;  ///< while nothing but exchanges runs
  double pass_us_ = 0, events_us_ = 0, comm_events_us_ = 0, step_events_us_ = 0;
  double layer_us_ = 0, shared_us_ = 0;  ///< in a step: computation of one layer with experts; its shared experts
  std::vector<ProfilePoint> points_;
  std::vector<HostLaunch> host_;
};

}  // namespace

SettingFigures measure_setting(const RankBench& bench, const CalibrationPoints& points,
                               const CalibrationSetting& setting, const RepeatRule& rule) {
  SettingTimer timer(bench, points, setting, rule);
  SettingFigures figures = timer.measure();
  bench.group.barrier();
  return figures;
}

std::vector<ProfilePoint> slowest_of(runtime::HostGroup& group, std::vector<ProfilePoint> points) {
  Json mine = Json::array();
  for (const ProfilePoint& point : points) mine.push(profile_point_to_json(point));
  for (const std::string& text : group.gather(compact_json(mine))) {
    const std::vector<JsonRef> theirs = JsonRef(json_document(text, "a rank's points")).items();
    DBO_CHECK(theirs.size() == points.size(), "all ranks measure the same points");
    for (std::size_t i = 0; i < points.size(); ++i) {
      const ProfilePoint other = profile_point_from_json(theirs[i]);
      DBO_CHECK(other.op == points[i].op && other.beside == points[i].beside, "all ranks measure the same points");
      points[i].median_us = std::max(points[i].median_us, other.median_us);
      points[i].spread_us = std::max(points[i].spread_us, other.spread_us);
      points[i].sm_mhz = std::min(points[i].sm_mhz, other.sm_mhz);
    }
  }
  return points;
}

}  // namespace dbo::validate
