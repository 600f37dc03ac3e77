#include "tools/tune_output.h"

#include <fmt/format.h>

#include <algorithm>

#include "sim/search/serving_flags.h"
#include "tools/summary.h"

namespace dbo {
namespace {

constexpr std::string_view kControls[] = {"limit", "green-context", "none"};
constexpr std::size_t kTableRows = 16;

std::string_view control_name(const TunePoint& p) {
  return p.comm_sms > 0 ? kControls[static_cast<std::size_t>(p.sm_control)] : "";
}

std::string_view phase_of(const TunePoint& p) {
  return phase_names()[static_cast<std::size_t>(p.phase)];
}

/// Step of the best un-split setting at a point's batch; 0 when there is none.
class UnsplitSteps {
 public:
  explicit UnsplitSteps(const TuneOutput& out) : out_(out) {}
  std::int64_t of(const TunePoint& p) {
    if (known_ && p.tokens == at_.tokens && p.context == at_.context && p.gpus == at_.gpus) return step_;
    at_ = p;
    known_ = true;
    step_ = 0;
    for (std::size_t i = 0; i < out_.grid.points.size(); ++i) {
      const TunePoint& q = out_.grid.points[i];
      if (q.split() || q.tokens != p.tokens || q.context != p.context || q.gpus != p.gpus) continue;
      const TuneResult& r = out_.results[i];
      if (r.status == TuneStatus::Ok && (step_ == 0 || r.step_ns < step_)) step_ = r.step_ns;
    }
    return step_;
  }
  double gain(std::size_t i) {
    const std::int64_t unsplit = of(out_.grid.points[i]);
    if (unsplit == 0 || out_.results[i].status != TuneStatus::Ok) return 0;
    return static_cast<double>(unsplit) / static_cast<double>(out_.results[i].step_ns);
  }

 private:
  const TuneOutput& out_;
  TunePoint at_;
  bool known_ = false;
  std::int64_t step_ = 0;
};

Json point_json(const TuneOutput& out, std::optional<std::size_t> i, UnsplitSteps& unsplit) {
  if (!i) return Json();
  const TunePoint& p = out.grid.points[*i];
  Json j = Json::object();
  j.set("phase", phase_of(p));
  j.set("tokens_per_rank", p.tokens);
  j.set("context_tokens", p.context);
  j.set("gpus", p.gpus);
  j.set("schedule", p.schedule);
  j.set("transport", transport_info(p.transport).name);
  j.set("ubatches", p.ubatches);
  j.set("comm_sms", p.comm_sms > 0 ? Json(p.comm_sms) : Json());
  j.set("sm_control", p.comm_sms > 0 ? Json(control_name(p)) : Json());
  j.set("step_ns", out.results[*i].step_ns);
  j.set("tokens_per_s_per_gpu", out.report.throughput[*i]);
  const double gain = unsplit.gain(*i);
  j.set("gain", gain > 0 ? Json(gain) : Json());
  j.set("memory_bytes", out.results[*i].memory_bytes);
  return j;
}

Json gains_json(const std::vector<Gain>& gains) {
  Json list = Json::array();
  for (const Gain& g : gains) {
    Json j = Json::object();
    j.set("tokens_per_rank", g.tokens);
    j.set("split_step_ns", g.split_ns > 0 ? Json(g.split_ns) : Json());
    j.set("unsplit_step_ns", g.unsplit_ns > 0 ? Json(g.unsplit_ns) : Json());
    j.set("gain", g.both() ? Json(g.ratio()) : Json());
    list.push(std::move(j));
  }
  return list;
}

Json strings(const std::vector<std::string>& items) {
  Json list = Json::array();
  for (const std::string& item : items) list.push(item);
  return list;
}

Json advice_json(const TuneOutput& out, const Advice& a) {
  const ServingFlags flags = serving_flags(out.config, a);
  Json j = Json::object();
  j.set("server", a.server);
  j.set("on", a.on);
  j.set("text", advice_text(a));
  j.set("setting", a.setting ? Json(setting_text(*a.setting)) : Json());
  if (a.setting && a.unsplit) {
    j.set("gain", a.sureness.gain);
    j.set("gain_range", Json(Json::Array{a.sureness.least, a.sureness.most}));
    j.set("gain_skewed", a.sureness.skewed ? Json(*a.sureness.skewed) : Json());
    j.set("cost_spread", a.sureness.spread);
    j.set("sure", a.sureness.sure());
  }
  Json crossovers = Json::object();
  for (const Crossover& c : a.crossovers) {
    Json entry = Json::object();
    entry.set("tokens_per_rank", c.tokens ? Json(*c.tokens) : Json());
    entry.set("text", crossover_text(c));
    entry.set("gains", gains_json(c.gains));
    crossovers.set(phase_names()[static_cast<std::size_t>(c.phase)], std::move(entry));
  }
  j.set("crossover", std::move(crossovers));
  j.set("version", flags.version);
  j.set("env", strings(flags.env));
  j.set("command", flags.command.empty() ? Json() : Json(flags.line()));
  j.set("command_where_it_pays", flags.where_it_pays.empty() ? Json() : Json(flags.where_it_pays));
  j.set("notes", strings(flags.notes));
  return j;
}

std::string count_text(double value) {
  return fmt::format("{:.0f}", value);
}

std::string line_of(const TuneOutput& out, std::size_t i, UnsplitSteps& unsplit) {
  const double gain = unsplit.gain(i);
  return fmt::format("{:>7}  {:<44}  {:>10}  {:>10}  {:>6}\n", out.grid.points[i].tokens,
                     setting_text(out.grid.points[i]), ms_text(out.results[i].step_ns),
                     count_text(out.report.throughput[i]), gain > 0 ? fmt::format("{:.2f}x", gain) : "-");
}

/// Why nothing runs at the config's own batch; empty when it was not tried.
std::string own_fails(const TuneOutput& out) {
  if (!out.report.own_tokens) return "";
  return fmt::format("at {} tokens  nothing can run: {}\n", *out.report.own_tokens,
                     out.report.own_fits ? "every step takes longer than allowed" : "no setting fits the GPU's memory");
}

std::string own_line(const TuneOutput& out) {
  const TuneReport& r = out.report;
  if (!r.own_best) return own_fails(out);
  const std::int64_t tokens = out.grid.points[*r.own_best].tokens;
  std::string text = fmt::format("at {} tokens  ", tokens);
  if (r.own_split)
    text += fmt::format("split {} ({}), ", ms_text(out.results[*r.own_split].step_ns),
                        setting_text(out.grid.points[*r.own_split]));
  else
    text += "no split setting can run, ";
  if (r.own_unsplit)
    text += fmt::format("un-split {} ({})", ms_text(out.results[*r.own_unsplit].step_ns),
                        setting_text(out.grid.points[*r.own_unsplit]));
  else
    text += "nothing un-split can run";
  return text + "\n";
}

std::string advice_lines(const TuneOutput& out, const Advice& a) {
  const ServingFlags flags = serving_flags(out.config, a);
  std::string text = fmt::format("{:<8} {}{}\n", a.server, a.on ? "" : "leave it off: ", advice_text(a));
  for (const Crossover& c : a.crossovers)
    text += fmt::format("         {} pays {}\n", phase_names()[static_cast<std::size_t>(c.phase)], crossover_text(c));
  if (!flags.command.empty()) text += fmt::format("         {}\n", flags.line());
  if (!flags.where_it_pays.empty()) text += fmt::format("         from there on alone: {}\n", flags.where_it_pays);
  for (const std::string& note : flags.notes) text += fmt::format("         note: {}\n", note);
  return text + fmt::format("         (flags and rules of {})\n", flags.version);
}

/// A field of a CSV line: quoted when it holds what separates.
std::string field(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string out = "\"";
  for (const char c : text) out += c == '"' ? std::string("\"\"") : std::string(1, c);
  return out + "\"";
}

}  // namespace

std::string setting_text(const TunePoint& p) {
  if (!p.split()) return fmt::format("un-split over {}", transport_info(p.transport).name);
  std::string text = fmt::format("{} over {}", p.schedule, transport_info(p.transport).name);
  if (p.ubatches != 2) text += fmt::format(", {} ubatches", p.ubatches);
  if (p.comm_sms > 0)
    text += fmt::format(", {} SMs{}", p.comm_sms,
                        p.sm_control == SmControl::None           ? " shared"
                        : p.sm_control == SmControl::GreenContext ? " green"
                                                                  : "");
  return text;
}

std::string tune_table(const TuneOutput& out) {
  const TuneReport& r = out.report;
  UnsplitSteps unsplit(out);
  std::string text = headline(out.config) + "\n";
  text += fmt::format("tried         {} points\n", out.grid.points.size());
  for (const LeftOut& l : r.left_out) text += fmt::format("left out      {}: {}\n", l.what, l.why);
  if (!r.best) return text + "nothing that was tried can run within the limits\n";
  text += fmt::format("best          {} tokens a rank, {}: step {}, {} tokens/s/GPU\n", out.grid.points[*r.best].tokens,
                      setting_text(out.grid.points[*r.best]), ms_text(out.results[*r.best].step_ns),
                      count_text(r.throughput[*r.best]));
  text += own_line(out);
  text += fmt::format("\n{:>7}  {:<44}  {:>10}  {:>10}  {:>6}\n", "tokens", "throughput against step time (Pareto)",
                      "step", "tok/s/GPU", "gain");
  // The ends and, of a long front, every so many between.
  const std::size_t step = (r.pareto.size() + kTableRows - 1) / kTableRows;
  for (std::size_t i = 0; i < r.pareto.size(); ++i)
    if (i % step == 0 || i + 1 == r.pareto.size()) text += line_of(out, r.pareto[i], unsplit);
  text += "gain: against the best un-split step of that batch, over any transport tried\n\n";
  for (const Advice& a : r.advice) text += advice_lines(out, a);
  return text;
}

Json tune_json(const TuneOutput& out) {
  const TuneReport& r = out.report;
  UnsplitSteps unsplit(out);
  Json j = Json::object();
  j.set("points", static_cast<std::int64_t>(out.grid.points.size()));
  j.set("objective", out.goal.objective == TuneObjective::StepTime ? "step_ns" : "tokens_per_s_per_gpu");
  j.set("max_step_ns", out.goal.max_step_ns == INT64_MAX ? Json() : Json(out.goal.max_step_ns));
  j.set("lists", tune_lists_to_json(out.grid.lists));
  Json left_out = Json::array();
  for (const LeftOut& l : r.left_out) left_out.push(Json(Json::Object{{"what", l.what}, {"why", l.why}}));
  j.set("left_out", std::move(left_out));
  j.set("best", point_json(out, r.best, unsplit));
  j.set("best_split", point_json(out, r.best_split, unsplit));
  j.set("best_unsplit", point_json(out, r.best_unsplit, unsplit));
  Json own = Json::object();
  own.set("best", point_json(out, r.own_best, unsplit));
  own.set("split", point_json(out, r.own_split, unsplit));
  own.set("unsplit", point_json(out, r.own_unsplit, unsplit));
  j.set("own_batch", std::move(own));
  Json pareto = Json::array();
  for (const std::size_t i : r.pareto) pareto.push(point_json(out, i, unsplit));
  j.set("pareto", std::move(pareto));
  j.set("gains", gains_json(r.gains));
  Json advice = Json::array();
  for (const Advice& a : r.advice) advice.push(advice_json(out, a));
  j.set("advice", std::move(advice));
  return j;
}

std::string tune_csv(const TuneOutput& out) {
  UnsplitSteps unsplit(out);
  std::string text =
      "phase,tokens_per_rank,context_tokens,gpus,transport,ubatches,sm_control,comm_sms,schedule,status,step_ns,"
      "tokens_per_s_per_gpu,gain,memory_bytes,pareto,why\n";
  std::vector<bool> pareto(out.grid.points.size(), false);
  for (const std::size_t i : out.report.pareto) pareto[i] = true;
  for (std::size_t i = 0; i < out.grid.points.size(); ++i) {
    const TunePoint& p = out.grid.points[i];
    const TuneResult& r = out.results[i];
    const double gain = unsplit.gain(i);
    text += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{:.3f},{},{},{},{}\n", phase_of(p), p.tokens, p.context,
                        p.gpus, transport_info(p.transport).name, p.ubatches, control_name(p),
                        p.comm_sms > 0 ? std::to_string(p.comm_sms) : "", p.schedule, status_name(r.status), r.step_ns,
                        out.report.throughput[i], gain > 0 ? fmt::format("{:.4f}", gain) : "", r.memory_bytes,
                        pareto[i] ? 1 : 0, field(r.why));
  }
  return text;
}

}  // namespace dbo
