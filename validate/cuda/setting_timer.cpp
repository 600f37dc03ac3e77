#include "validate/cuda/setting_timer.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>

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
    for (const OpKind kind : setting_.ops) {
      if (is_compute(kind)) alone(kind);
    }
    const bool comm = std::any_of(setting_.ops.begin(), setting_.ops.end(), is_comm);
    if (comm && plan_.find_op("D")) collectives();
    if (comm && plan_.find_op("D.send")) halves();
    for (const OpKind kind : setting_.beside) beside(kind);
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
      const std::vector<Enqueue> links = links_of(static_cast<OpKind>(kind));
      host_.push_back({std::string(op_name(static_cast<OpKind>(kind))), timing.median_us, timing.repeats,
                       links.empty() ? 1 : timer_->count_kernels(links.front())});
    }
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

  void alone(OpKind kind) {
    const std::vector<Enqueue> links = links_of(kind);
    if (links.empty()) return;
    const Timing timing = chain(links);
    alone_us_[static_cast<std::size_t>(kind)] = timing.median_us;
    add(op_name(kind), timing, "");
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
  }

  /// Sends and receives: once back to back, so that receives wait for the wire, and once with a hold before each
  /// receive, so that they do not.
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
    add("D.send", waiting[0], "");
    add("D.recv", ready[2], "");
    add("D.wire", wire(waiting[1], ready[2]), "");
    add("C.send", waiting[2], "");
    add("C.recv", ready[5], "");
    add("C.wire", wire(waiting[3], ready[5]), "");
    pass_us_ = sum + 4 * gap_us_;
    comm_events_us_ = events_us_;
  }

  /// From the send's end: the receive began a gap later.
  Timing wire(const Timing& waiting, const Timing& ready) const {
    return {std::max(waiting.median_us - ready.median_us, 0.0) + gap_us_, waiting.spread_us, waiting.repeats};
  }

  void beside(OpKind kind) {
    const std::vector<Enqueue> compute = links_of(kind);
    if (compute.empty() || pass_us_ <= 0) return;
    const bool whole_kernels = plan_.find_op("D").has_value();
    const std::vector<Enqueue> pass = whole_kernels
                                          ? one_pass({OpKind::D, OpKind::C})
                                          : one_pass({OpKind::DSend, OpKind::DRecv, OpKind::CSend, OpKind::CRecv});
    const double one_us = alone_us_[static_cast<std::size_t>(kind)];
    // Computation that lasts some passes, and communication that surely outlasts it, slowed down as both are.
    const int count = agreed_int(std::clamp(static_cast<int>(std::ceil(4 * pass_us_ / std::max(one_us, 1.0))), 2, 48));
    const int passes =
        agreed_int(std::clamp(static_cast<int>(std::ceil(2.2 * count * one_us / std::max(pass_us_, 1.0))) + 2, 6, 128));
    ChainTimer::Beside both = timer_->beside(compute, count, pass, passes, rule_);
    both.compute.median_us = std::max(both.compute.median_us - gap_us_, 0.0);
    if (agreed_all(both.covered)) add(op_name(kind), both.compute, whole_kernels ? "D+C" : "D.send+C.send");
    for (std::size_t i = 0; whole_kernels && i < both.comm.size(); ++i) {
      Timing one = both.comm[i];
      if (!agreed_all(one.repeats > 0)) continue;
      one.median_us = std::max(one.median_us - comm_events_us_, 0.0);
      add(i == 0 ? "D" : "C", one, std::string(op_name(kind)));
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

  void add(std::string_view op, const Timing& timing, std::string beside) {
    const auto kind = find_op_kind(op);
    const bool comm = is_comm(*kind);
    // What the events around it take more than was no measurement.
    if (comm && !agreed_all(timing.median_us > 0)) return;
    ProfilePoint point;
    point.op = op;
    point.beside = std::move(beside);
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
  double pass_us_ = 0, events_us_ = 0, comm_events_us_ = 0;
  std::array<double, kOpKinds> alone_us_{};
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
    }
  }
  return points;
}

}  // namespace dbo::validate
