#include "sim/search/why.h"

#include <algorithm>
#include <cmath>

#include "sim/base/schedule_names.h"
#include "sim/search/tune_grid.h"
#include "sim/search/tune_point.h"

namespace dbo {
namespace {

std::string decimals(double value, int digits) {
  const auto power = static_cast<std::int64_t>(std::llround(std::pow(10.0, digits)));
  const auto scaled = static_cast<std::int64_t>(std::llround(value * static_cast<double>(power)));
  std::string fraction = std::to_string(scaled % power);
  fraction.insert(0, static_cast<std::size_t>(digits) - fraction.size(), '0');
  return std::to_string(scaled / power) + "." + fraction;
}

std::string time_text(std::int64_t ns) {
  if (ns >= 1000000) return decimals(static_cast<double>(ns) / 1e6, 2) + " ms";
  return decimals(static_cast<double>(ns) / 1e3, 1) + " us";
}

std::string share_text(std::int64_t part, std::int64_t whole) {
  return std::to_string(whole == 0 ? 0 : std::llround(100.0 * static_cast<double>(part) / static_cast<double>(whole))) +
         " %";
}

/// "3.2 % more" and the like; of what is all but equal: "as many".
std::string change_text(double ratio) {
  if (!std::isfinite(ratio)) return "infinitely more";  // than none
  const double percent = 100 * (ratio - 1);
  if (std::abs(percent) < 0.05) return "as many";
  return decimals(std::abs(percent), 1) + " % " + (percent > 0 ? "more" : "fewer");
}

std::string point_text(const TunePoint& p) {
  const std::string over = " over " + std::string(transport_info(p.transport).name);
  return p.split() ? p.schedule + over : "un-split" + over;
}

std::string_view loss_text(LossCause cause) {
  switch (cause) {
    case LossCause::FewSms:
      return "others hold SMs it could use";
    case LossCause::Hbm:
      return "memory bandwidth is shared";
    case LossCause::Link:
      return "the NVLink port is shared";
    case LossCause::Nic:
      return "the NIC is shared";
    case LossCause::Beside:
      return "kernels that overlap slow each other";
    case LossCause::WaveTail:
      return "last waves of tiles do not fill the SMs";
    case LossCause::WeightRead:
      return "each ubatch reads the weights again";
  }
  return "";
}

class Explainer {
 public:
  Explainer(const Config& config, const Prediction& p) : config_(config), p_(p), evaluator_(config) {}

  Why make() {
    find_limits();
    find_settings();
    std::stable_sort(
        why_.what_ifs.begin() + static_cast<std::ptrdiff_t>(limits_), why_.what_ifs.end(),
        [](const WhatIf& a, const WhatIf& b) { return a.runs != b.runs ? a.runs : a.throughput > b.throughput; });
    why_.parts = split_parts(config_, p_);
    say_step();
    say_parts();
    say_lanes();
    say_windows();
    say_losses();
    say_limits();
    say_help();
    return std::move(why_);
  }

 private:
  void say(std::string sentence) { why_.sentences.push_back(std::move(sentence)); }

  double throughput(std::int64_t step_ns, std::int64_t tokens, int gpus) const {
    return step_ns == 0 ? 0 : static_cast<double>(tokens) * 1e9 / static_cast<double>(step_ns) / gpus;
  }
  double now() const { return p_.tokens_per_s_per_gpu(p_.result); }

  /// The plan as it is, with other costs.
  void add_limit(std::string what, const CostTable& costs) {
    WhatIf w;
    w.what = std::move(what);
    w.step_ns = run_engine(p_.split.plan, costs).step();
    w.throughput = throughput(w.step_ns, p_.tokens, p_.gpus);
    why_.what_ifs.push_back(std::move(w));
    ++limits_;
  }

  void find_limits() {
    const CostedPlan& split = p_.split;
    add_limit("communication took no time", scaled_costs(split.costs, split.plan, {1, 0}));
    add_limit("compute took no time", scaled_costs(split.costs, split.plan, {0, 1}));
    CostTable free_host = split.costs;
    free_host.host = {};
    free_host.host_blocks = false;
    add_limit("the host and the gaps between kernels took no time", free_host);
  }

  TunePoint own_point() const {
    TunePoint p;
    if (const auto& w = config_.workload.uniform) {
      p.phase = w->phase;
      p.tokens = w->decode_tokens + w->prefill_tokens;
      p.context = w->context_tokens;
    }
    p.gpus = config_.cluster.gpus();
    p.transport = config_.overlap.transport;
    p.ubatches = std::max(2, config_.overlap.ubatches);
    p.sm_control = config_.overlap.sm_control;
    p.comm_sms = transport_info(p.transport).limits_sms ? config_.overlap.comm_sms : 0;
    p.schedule = config_.overlap.schedule;
    return p;
  }

  static TunePoint unsplit(TunePoint p) {
    p.schedule = kSequentialSchedule;
    p.ubatches = 1;
    p.sm_control = SmControl::Limit;
    p.comm_sms = 0;
    return p;
  }

  void add_setting(std::string what, const TunePoint& point) {
    const TuneResult r = evaluator_.evaluate(point);
    if (r.status == TuneStatus::NotSplit || r.status == TuneStatus::Unsound) return;
    WhatIf w;
    w.what = std::move(what);
    w.setting = true;
    w.runs = r.status == TuneStatus::Ok;
    w.step_ns = r.step_ns;
    w.throughput = throughput(r.step_ns, evaluator_.step_tokens(point), point.gpus);
    why_.what_ifs.push_back(std::move(w));
  }

  /// All other settings of the sweep that `dbo tune` would do at this batch, and this setting at other batches.
  void find_settings() {
    const TunePoint own = own_point();
    TuneLists lists;
    lists.tokens = {own.tokens};
    if (config_.costs.source == CostSource::Fixed) lists.transports = {own.transport};
    for (const TunePoint& point : make_tune_grid(config_, lists).points) {
      const bool same = p_.decision.split ? point == own : point == unsplit(own);
      if (same) continue;
      std::string what = point_text(point);
      if (point.comm_sms > 0)
        what += " with " + std::to_string(point.comm_sms) + " comm SMs" +
                (point.sm_control == SmControl::None ? ", compute not limited" : "");
      add_setting(std::move(what), point);
    }
    if (!config_.workload.uniform || config_.costs.source == CostSource::Fixed || own.schedule.empty()) return;
    const std::int64_t unit = own.phase == Phase::Decode ? config_.workload.uniform->query_tokens : 1;
    for (const std::int64_t tokens : {own.tokens / 2 / unit * unit, own.tokens * 2}) {
      TunePoint point = p_.decision.split ? own : unsplit(own);
      point.tokens = tokens;
      if (tokens < unit || (own.phase == Phase::Mixed && tokens <= config_.workload.uniform->decode_tokens)) continue;
      add_setting(std::to_string(tokens) + " tokens a rank", point);
    }
  }

  void say_step() {
    const std::int64_t step = p_.result.step_ns, off = p_.baseline_result.step_ns;
    std::string text = "The step takes " + time_text(step) + ": ";
    if (!p_.decision.split) {
      say(text + "it is not split, as " + p_.decision.reason_text + ".");
      return;
    }
    const double ratio = step == 0 ? 1 : static_cast<double>(off) / static_cast<double>(step);
    text += "split in " + std::to_string(p_.decision.ubatches) + " it gives " + change_text(ratio) +
            " tokens a second than un-split (" + time_text(off) + ")";
    if (std::abs(ratio - 1) < 0.0005) text = "The step takes " + time_text(step) + ", split or not";
    say(text + ".");
  }

  /// What splitting gains and loses, the largest first; the numbers add up to the difference but for rounding.
  void say_parts() {
    const std::int64_t difference = p_.result.step_ns - p_.baseline_result.step_ns;
    std::vector<SplitPart> parts = why_.parts;
    std::stable_sort(parts.begin(), parts.end(), [](const SplitPart& a, const SplitPart& b) { return a.ns < b.ns; });
    std::string gained, lost;
    for (const SplitPart& part : parts)
      if (part.ns < 0) gained += (gained.empty() ? "" : ", ") + time_text(-part.ns) + " on " + part.what;
    for (auto part = parts.rbegin(); part != parts.rend(); ++part)
      if (part->ns > 0) lost += (lost.empty() ? "" : ", ") + time_text(part->ns) + " on " + part->what;
    if (gained.empty() && lost.empty()) return;
    std::string text = "Splitting ";
    if (!gained.empty()) text += "saves " + gained;
    if (!lost.empty()) text += (gained.empty() ? "costs " : ", and costs ") + lost;
    say(text + ": " +
        (difference == 0 ? std::string("no less and no more")
                         : time_text(std::abs(difference)) + (difference > 0 ? " more" : " less")) +
        " in all.");
  }

  void say_lanes() {
    const StepResult& r = p_.result;
    std::string text;
    for (std::size_t lane = 0; lane < p_.split.plan.lanes.size(); ++lane) {
      if (r.lane_busy_ns[lane] == 0) continue;
      text += (text.empty() ? "The " : ", the ") + p_.split.plan.lanes[lane] + " lane works " +
              share_text(r.lane_busy_ns[lane], r.step_ns) + " of it";
    }
    const Bubble* worst = nullptr;
    for (const Bubble& b : r.bubbles)
      if (b.lane == 0 && b.cause != BubbleCause::Drain && (worst == nullptr || b.ns > worst->ns)) worst = &b;
    if (worst != nullptr)
      text += "; most of what " + p_.split.plan.lanes[0] + " waits for is " + std::string(bubble_text(worst->cause)) +
              (worst->rank < 0 ? "" : ", rank " + std::to_string(worst->rank) + " most of all,") + " (" +
              time_text(worst->ns) + ")";
    say(text + ".");
    text = time_text(r.exposed_comm_ns) + " of communication is exposed, " + share_text(r.exposed_comm_ns, r.step_ns) +
           " of the step";
    if (r.period.layers > 0)
      text += "; a MoE layer takes " + time_text(r.period.period_ns) + ", and no order of its ops less than " +
              time_text(r.bound.bound_ns);
    say(text + ".");
  }

  static std::string_view bubble_text(BubbleCause cause) {
    switch (cause) {
      case BubbleCause::Host:
        return "the host that launches";
      case BubbleCause::Wire:
        return "data on the wire";
      case BubbleCause::Peer:
        return "other ranks";
      case BubbleCause::Order:
        return "the other lane";
      case BubbleCause::Gap:
        return "gaps between kernels";
      case BubbleCause::Drain:
        return "the end of the step";
      case BubbleCause::Sms:
        return "SMs that others hold";
    }
    return "";
  }

  /// The windows that carry the most, and how much of each is hidden.
  void say_windows() {
    std::vector<const WindowShare*> windows;
    for (const WindowShare& w : p_.result.windows)
      if (w.hidden + w.exposed > Ns{}) windows.push_back(&w);
    std::stable_sort(windows.begin(), windows.end(), [](const WindowShare* a, const WindowShare* b) {
      return a->hidden + a->exposed > b->hidden + b->exposed;
    });
    constexpr std::size_t kMost = 4;
    if (windows.size() > kMost) windows.resize(kMost);
    std::string text;
    for (const WindowShare* w : windows) {
      const std::size_t bar = w->name.find('|');
      const std::int64_t all = (w->hidden + w->exposed).count();
      text += (text.empty() ? "" : ", ") + w->name.substr(bar + 1) + " hides " + share_text(w->hidden.count(), all) +
              " of " + w->name.substr(0, bar) + " (" + time_text(w->hidden.count()) + " of " + time_text(all) + ")";
    }
    if (text.empty())
      say(p_.decision.split ? "No communication is under way while anything computes."
                            : "Nothing is there to hide communication behind.");
    else
      say("Of what is under way, " + text + ".");
  }

  void say_losses() {
    std::vector<std::pair<LossCause, std::int64_t>> causes;
    for (int c = 0; c < kLossCauses; ++c) {
      std::int64_t ns = 0;
      for (const Loss& loss : p_.result.losses)
        if (loss.cause == static_cast<LossCause>(c)) ns += loss.ns;
      // Below a part in two hundred it explains nothing.
      if (ns * 200 > p_.result.step_ns) causes.emplace_back(static_cast<LossCause>(c), ns);
    }
    std::stable_sort(causes.begin(), causes.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
    std::string text;
    for (const auto& [cause, ns] : causes)
      text += (text.empty() ? "" : ", ") + time_text(ns) + " because " + std::string(loss_text(cause));
    if (!text.empty()) say("Kernels take longer than they could: " + text + ".");
  }

  void say_limits() {
    std::string text;
    for (std::size_t i = 0; i < limits_; ++i) {
      const WhatIf& w = why_.what_ifs[i];
      text += (text.empty() ? "If " : "; if ") + w.what + ", " + time_text(w.step_ns);
    }
    say(text + ".");
  }

  void say_help() {
    std::string text;
    int count = 0, tried = 0, no_memory = 0;
    for (std::size_t i = limits_; i < why_.what_ifs.size(); ++i) {
      const WhatIf& w = why_.what_ifs[i];
      ++tried;
      no_memory += w.runs ? 0 : 1;
      constexpr int kMost = 3;
      if (!w.runs || w.throughput <= now() * 1.0005 || count == kMost) continue;
      // Schedules that come to the same order are said once.
      if (i > limits_ && count > 0 && w.step_ns == why_.what_ifs[i - 1].step_ns) continue;
      ++count;
      text += (count == 1 ? "" : ", then ") + w.what + " (" + change_text(w.throughput / now()) +
              " tokens a second, step " + time_text(w.step_ns) + ")";
    }
    if (tried == 0) return;
    std::string of = "Of " + std::to_string(tried) + " other settings simulated, ";
    if (no_memory > 0)
      of += std::to_string(no_memory) + (no_memory == 1 ? " does" : " do") + " not fit the GPU's memory, and ";
    say(of + (count == 0 ? "none is better." : "what would help most is " + text + "."));
  }

  const Config& config_;
  const Prediction& p_;
  TuneEvaluator evaluator_;
  Why why_;
  std::size_t limits_ = 0;
};

}  // namespace

Why explain(const Config& config, const Prediction& prediction) {
  return Explainer(config, prediction).make();
}

}  // namespace dbo
