#include "sim/search/tune_report.h"

#include <algorithm>
#include <functional>
#include <map>

#include "sim/base/schedule_names.h"
#include "sim/cost/profile.h"

namespace dbo {
namespace {

/// What published steps of DeepSeek-V3 are met within: those that decode, and layers of prompts. Their comparison, with
/// these bounds, is part of the tests.
constexpr double kDecodeSpread = 0.13, kPrefillSpread = 0.28;
constexpr double kLeastSpread = 0.01;

struct Server {
  const char* name;
  const char* low_latency;      ///< its schedule with send and receive halves
  const char* high_throughput;  ///< its schedule with one comm op
  bool shares_sms;              ///< can leave compute's SMs unlimited, comm kernels having all they were created with
  bool by_phase;                ///< changes the transport with the phase, when left to choose
};
constexpr Server kServers[] = {{"vLLM", "vllm-ll", "vllm-ht", true, false},
                               {"SGLang", "sglang-decode", "sglang-prefill", false, true}};

bool has_transport(const TunePoint& p) {
  return p.transport == Transport::Ll || p.transport == Transport::Ht;
}

/// Whether a server can be told to run a split setting.
bool has_setting(const Server& server, const TunePoint& p, const Config& config) {
  if (!has_transport(p) || (p.schedule != server.low_latency && p.schedule != server.high_throughput)) return false;
  if (p.comm_sms == 0) return true;
  if (p.sm_control == SmControl::None) return server.shares_sms && p.comm_sms == config.overlap.comm_sms_created;
  return p.sm_control == SmControl::Limit;
}

class Reporter {
 public:
  Reporter(const Config& config, const TuneGrid& grid, const std::vector<TuneResult>& results, const TuneGoal& goal)
      : config_(config), grid_(grid), results_(results), goal_(goal), evaluator_(config) {}

  TuneReport make() {
    find_throughput();
    report_.best = best_of([](const TunePoint&) { return true; });
    report_.best_split = best_of([](const TunePoint& p) { return p.split(); });
    report_.best_unsplit = best_of([](const TunePoint& p) { return !p.split(); });
    const auto own = [&](const TunePoint& p) { return is_own(p); };
    report_.own_best = best_of(own);
    report_.own_split = best_of([&](const TunePoint& p) { return own(p) && p.split(); });
    report_.own_unsplit = best_of([&](const TunePoint& p) { return own(p) && !p.split(); });
    for (std::size_t i = 0; i < grid_.points.size(); ++i) {
      if (!own(grid_.points[i])) continue;
      report_.own_tokens = grid_.points[i].tokens;
      report_.own_fits = report_.own_fits || results_[i].status == TuneStatus::Ok;
    }
    find_pareto();
    find_gains();
    find_left_out();
    for (const Server& server : kServers) report_.advice.push_back(advise(server));
    return std::move(report_);
  }

 private:
  bool runs(std::size_t i) const {
    return results_[i].status == TuneStatus::Ok && results_[i].step_ns > 0 && results_[i].step_ns <= goal_.max_step_ns;
  }

  void find_throughput() {
    report_.throughput.assign(grid_.points.size(), 0);
    for (std::size_t i = 0; i < grid_.points.size(); ++i) {
      if (results_[i].status != TuneStatus::Ok || results_[i].step_ns == 0) continue;
      report_.throughput[i] = static_cast<double>(evaluator_.step_tokens(grid_.points[i])) * 1e9 /
                              static_cast<double>(results_[i].step_ns) / grid_.points[i].gpus;
    }
  }

  /// The first of the best: un-split steps come before split ones of the same batch and transport.
  std::optional<std::size_t> best_of(const std::function<bool(const TunePoint&)>& wanted) const {
    std::optional<std::size_t> best;
    for (std::size_t i = 0; i < grid_.points.size(); ++i) {
      if (!runs(i) || !wanted(grid_.points[i])) continue;
      if (!best || better(i, *best)) best = i;
    }
    return best;
  }
  bool better(std::size_t a, std::size_t b) const {
    return goal_.objective == TuneObjective::StepTime ? results_[a].step_ns < results_[b].step_ns
                                                      : report_.throughput[a] > report_.throughput[b];
  }

  bool is_own(const TunePoint& p) const {
    if (p.gpus != config_.cluster.gpus()) return false;
    if (!config_.workload.uniform) return true;
    const UniformWorkload& w = *config_.workload.uniform;
    return p.tokens == w.decode_tokens + w.prefill_tokens && p.context == w.context_tokens;
  }

  void find_pareto() {
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < grid_.points.size(); ++i)
      if (runs(i)) order.push_back(i);
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      if (results_[a].step_ns != results_[b].step_ns) return results_[a].step_ns < results_[b].step_ns;
      return report_.throughput[a] > report_.throughput[b];
    });
    double most = 0;
    for (const std::size_t i : order) {
      if (report_.throughput[i] <= most) continue;
      most = report_.throughput[i];
      report_.pareto.push_back(i);
    }
  }

  void find_gains() {
    const int gpus = config_.cluster.gpus();
    const std::int64_t context = grid_.lists.contexts.size() == 1 || !config_.workload.uniform
                                     ? grid_.lists.contexts.front()
                                     : config_.workload.uniform->context_tokens;
    std::map<std::int64_t, Gain> by_tokens;
    for (std::size_t i = 0; i < grid_.points.size(); ++i) {
      const TunePoint& p = grid_.points[i];
      if (p.gpus != gpus || p.context != context || results_[i].status != TuneStatus::Ok) continue;
      Gain& gain = by_tokens[p.tokens];
      std::int64_t& least = p.split() ? gain.split_ns : gain.unsplit_ns;
      if (least == 0 || results_[i].step_ns < least) least = results_[i].step_ns;
    }
    for (auto& [tokens, gain] : by_tokens) {
      gain.tokens = tokens;
      report_.gains.push_back(gain);
    }
  }

  void find_left_out() {
    report_.left_out = grid_.left_out;
    std::map<std::string, std::int64_t> by_reason;
    for (const TuneResult& r : results_) {
      if (r.status == TuneStatus::NoMemory)
        ++by_reason["need more than the " + std::to_string(config_.cluster.gpu.hbm_bytes >> 30) + " GiB of the GPU"];
      if (r.status == TuneStatus::NotSplit) ++by_reason["are not split: " + r.why];
      if (r.status == TuneStatus::Unsound) ++by_reason["are unsound: " + r.why];
    }
    for (const auto& [why, count] : by_reason) report_.left_out.push_back({std::to_string(count) + " points", why});
  }

  /// The batch that is advised on: the config's own where it was tried, or else that of the best point.
  std::optional<TunePoint> advised_batch() const {
    const std::optional<std::size_t> i = report_.own_best ? report_.own_best : report_.best;
    if (!i) return std::nullopt;
    return grid_.points[*i];
  }

  Advice advise(const Server& server) {
    Advice advice;
    advice.server = server.name;
    const std::optional<TunePoint> batch = advised_batch();
    if (!batch) {
      advice.reason = "no setting that was tried can run";
      return advice;
    }
    const auto here = [&](const TunePoint& p) {
      return p.phase == batch->phase && p.tokens == batch->tokens && p.context == batch->context &&
             p.gpus == batch->gpus;
    };
    const auto split = best_of([&](const TunePoint& p) { return here(p) && has_setting(server, p, config_); });
    const auto unsplit = best_of([&](const TunePoint& p) { return here(p) && !p.split() && has_transport(p); });
    if (unsplit) advice.unsplit = grid_.points[*unsplit];
    if (!split) {
      const bool tried = std::any_of(grid_.points.begin(), grid_.points.end(), has_transport);
      advice.reason = tried ? "nothing it can be told to run was tried and can run"
                            : "it has none of the transports tried; its own are ht and ll (--transport ht,ll)";
      return advice;
    }
    advice.setting = grid_.points[*split];
    for (const Phase phase : {Phase::Decode, Phase::Prefill})
      if (can_vary()) advice.crossovers.push_back(crossover(setting_in(server, *advice.setting, phase), phase));
    if (!unsplit) {
      advice.on = true;
      advice.reason = "only split does it fit";
      return advice;
    }
    advice.sureness = sureness(*advice.setting, *advice.unsplit);
    advice.on = results_[*split].step_ns < results_[*unsplit].step_ns;
    return advice;
  }

  /// Whether the config's batch follows a rule that has other sizes.
  bool can_vary() const { return config_.workload.uniform && config_.costs.source != CostSource::Fixed; }

  Sureness sureness(const TunePoint& split, const TunePoint& unsplit) {
    Sureness s;
    s.spread = cost_spread(config_);
    const auto gain = [&](double compute, double communication) {
      const CostScale scale{compute, communication};
      return static_cast<double>(evaluator_.evaluate(unsplit, scale).step_ns) /
             static_cast<double>(evaluator_.evaluate(split, scale).step_ns);
    };
    s.gain = s.least = s.most = gain(1, 1);
    if (s.spread == 0) return s;
    for (const double compute : {1 - s.spread, 1 + s.spread}) {
      for (const double communication : {1 - s.spread, 1 + s.spread}) {
        const double g = gain(compute, communication);
        s.least = std::min(s.least, g);
        s.most = std::max(s.most, g);
      }
    }
    s.skewed = skewed_gain(split, unsplit);
    return s;
  }

  /// The gain where a config with even experts has uneven ones; nothing where ranks are too many to draw for each.
  std::optional<double> skewed_gain(const TunePoint& split, const TunePoint& unsplit) const {
    constexpr int kMostGpus = 512;
    if (config_.routing.kind != RoutingKind::Balanced || config_.cluster.gpus() > kMostGpus) return std::nullopt;
    Config skewed = config_;
    skewed.routing.kind = RoutingKind::Zipf;
    skewed.routing.alpha = kSkewAlpha;
    skewed.routing.seed = kSkewSeed;
    TuneEvaluator evaluator(skewed);
    return static_cast<double>(evaluator.evaluate(unsplit).step_ns) /
           static_cast<double>(evaluator.evaluate(split).step_ns);
  }

  /// What a server runs in a phase once it is told to run `setting` in the batch's own.
  TunePoint setting_in(const Server& server, TunePoint setting, Phase phase) const {
    const bool own_decode = setting.phase == Phase::Decode, decode = phase == Phase::Decode;
    if (!server.by_phase || own_decode == decode || own_decode != (setting.transport == Transport::Ll)) return setting;
    setting.transport = decode ? Transport::Ll : Transport::Ht;
    setting.schedule = decode ? server.low_latency : server.high_throughput;
    setting.comm_sms = decode ? 0 : config_.overlap.comm_sms_created;
    setting.sm_control = SmControl::Limit;
    return setting;
  }

  Gain gain_at(const TunePoint& setting, Phase phase, std::int64_t tokens) {
    TunePoint split = setting;
    split.phase = phase;
    split.tokens = tokens;
    TunePoint off = split;
    off.schedule = kSequentialSchedule;
    off.ubatches = 1;
    off.sm_control = SmControl::Limit;
    off.comm_sms = 0;
    const TuneResult a = evaluator_.evaluate(split), b = evaluator_.evaluate(off);
    Gain gain;
    gain.tokens = tokens;
    if (a.status == TuneStatus::Ok) gain.split_ns = a.step_ns;
    if (b.status == TuneStatus::Ok) gain.unsplit_ns = b.step_ns;
    return gain;
  }

  /// Where memory ends between two usual batches, the largest that fits split and un-split, in steps of `unit`.
  void add_largest(Crossover& out, std::int64_t unit, std::int64_t too_many) {
    const std::int64_t last = out.gains.back().tokens / unit;
    std::int64_t fits = last, over = too_many / unit;
    while (over - fits > 1) {
      const std::int64_t middle = fits + (over - fits) / 2;
      (gain_at(out.setting, out.phase, middle * unit).both() ? fits : over) = middle;
    }
    if (fits > last) out.gains.push_back(gain_at(out.setting, out.phase, fits * unit));
  }

  /// On the same server, DBO on against off. Between the last batch that loses and the first from which all win, the
  /// least batch that wins is found by halving.
  Crossover crossover(const TunePoint& setting, Phase phase) {
    Crossover out;
    out.phase = phase;
    out.setting = setting;
    const std::int64_t unit = phase == Phase::Decode ? config_.workload.uniform->query_tokens : 1;
    std::int64_t too_many = 0;
    for (const std::int64_t tokens : usual_tokens(config_, phase)) {
      const Gain gain = gain_at(setting, phase, tokens);
      if (gain.unsplit_ns > 0) out.gains.push_back(gain);
      if (gain.unsplit_ns == 0 && too_many == 0) too_many = tokens;
    }
    if (too_many > 0 && !out.gains.empty()) add_largest(out, unit, too_many);
    const auto pays = [](const Gain& g) { return g.both() && g.split_ns < g.unsplit_ns; };
    std::size_t first = out.gains.size();
    while (first > 0 && pays(out.gains[first - 1])) --first;
    if (first == out.gains.size()) return out;
    out.tokens = out.gains[first].tokens;
    std::int64_t loses = first > 0 ? out.gains[first - 1].tokens / unit : 0, wins = *out.tokens / unit;
    if (first == 0) {
      // A batch has a token for each ubatch.
      loses = (setting.ubatches + unit - 1) / unit;
      out.always = loses >= wins || pays(gain_at(setting, phase, loses * unit));
      if (out.always) out.tokens = std::min(wins, loses) * unit;
      if (out.always) return out;
    }
    while (wins - loses > 1) {
      const std::int64_t middle = loses + (wins - loses) / 2;
      (pays(gain_at(setting, phase, middle * unit)) ? wins : loses) = middle;
    }
    out.tokens = wins * unit;
    return out;
  }

  const Config& config_;
  const TuneGrid& grid_;
  const std::vector<TuneResult>& results_;
  const TuneGoal& goal_;
  TuneEvaluator evaluator_;
  TuneReport report_;
};

}  // namespace

double cost_spread(const Config& config) {
  const auto& batch = config.workload.uniform;
  const double analytical = batch && batch->phase != Phase::Decode ? kPrefillSpread : kDecodeSpread;
  switch (config.costs.source) {
    case CostSource::Analytical:
      return analytical;
    case CostSource::Fixed:
      return 0;
    case CostSource::Profile:
      break;
  }
  // What the profile does not hold is priced by published rates, and is as far off as those.
  const std::vector<ProfilePoint>& points = profile_of(config).points;
  const bool exchanges = std::any_of(points.begin(), points.end(), [&](const ProfilePoint& p) {
    return p.ranks > 0 && p.transport == config.overlap.transport;
  });
  const bool computes = std::any_of(points.begin(), points.end(), [&](const ProfilePoint& p) {
    return p.op == "A1" && p.precision == config.model.weights;
  });
  if (!exchanges || !computes) return analytical;
  std::vector<double> spreads;
  for (const ProfilePoint& point : points)
    if (point.median_us > 0) spreads.push_back(point.spread_us / point.median_us);
  if (spreads.empty()) return analytical;
  const auto middle = spreads.begin() + static_cast<std::ptrdiff_t>(spreads.size() / 2);
  std::nth_element(spreads.begin(), middle, spreads.end());
  return std::max(kLeastSpread, *middle);
}

TuneReport make_tune_report(const Config& config, const TuneGrid& grid, const std::vector<TuneResult>& results,
                            const TuneGoal& goal) {
  return Reporter(config, grid, results, goal).make();
}

}  // namespace dbo
