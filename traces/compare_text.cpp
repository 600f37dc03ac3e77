#include <algorithm>

#include "traces/compare.h"
#include "traces/text_table.h"

namespace dbo {
namespace {

std::string percent(double share, bool sign = false) {
  return (sign && share >= 0 ? "+" : "") + fixed_text(share * 100, 1) + " %";
}
std::string share_text(const std::optional<double>& share) {
  return share ? percent(*share) : "-";
}

std::string head_text(const Comparison& c) {
  std::string out = "predicted  " + c.predicted_file + "\nmeasured   " + c.measured_file + "\n";
  out += "plan       " + (c.plan_hash.empty() ? std::string("none in the prediction") : c.plan_hash);
  if (c.foreign)
    out += ", joined with a profiler's trace by kind, layer and ubatch";
  else if (!c.same_plan)
    out += ", the measured trace is of another plan or names none";
  out += c.by_plan ? "\n" : "; the plan itself is not at hand: no windows, order judged against the prediction\n";
  out += "ops        " + grouped(c.joined) + " joined on " + std::to_string(c.ranks.size()) +
         (c.ranks.size() == 1 ? " rank" : " ranks");
  if (c.only_predicted > 0) out += ", " + grouped(c.only_predicted) + " only predicted";
  if (c.only_measured > 0) out += ", " + grouped(c.only_measured) + " only measured";
  return out + "\n";
}

std::string order_text(const Comparison& c) {
  std::string out = "\norder      ";
  if (c.order.empty() && !c.divergence) return out + "kept\n";
  if (!c.order.empty())
    out += std::to_string(c.order.size()) + (c.order.size() >= 100 ? " findings or more\n" : " findings\n");
  if (c.divergence) {
    const Divergence& d = *c.divergence;
    if (c.order.empty()) out += "differs\n";
    out += "  first divergence: rank " + std::to_string(d.rank) + ", lane " + d.lane + ", op " +
           std::to_string(d.position) + "\n    " + (d.before.empty() ? "at the beginning" : "after " + d.before) +
           "\n    planned  " + d.planned + "\n    measured " + d.measured + "\n";
  }
  for (std::size_t i = 0; i < std::min<std::size_t>(c.order.size(), 5); ++i)
    out += "  " + std::string(finding_name(c.order[i].kind)) + ": " + c.order[i].text + "\n";
  return out;
}

std::string clocks_text(const Comparison& c) {
  TextTable table({"clock", "offset us", "drift ppm", "residual us", "exchanges"});
  for (std::size_t i = 1; i < c.clocks.size(); ++i) {
    const RankClock& clock = c.clocks[i];
    if (clock.measurements < 2) continue;
    table.add({"rank " + std::to_string(clock.rank), us_short(clock.offset), fixed_text(clock.drift_ppm, 2),
               us_short(clock.residual), std::to_string(clock.measurements)});
  }
  return table.empty() ? std::string() : "\n" + table.text();
}

std::string windows_text(const Comparison& c) {
  TextTable table({"window", "planned", "seen", "hidden, predicted", "measured", "achieved", "exposed us"});
  for (const WindowRow& row : c.windows) {
    const auto predicted = row.predicted_share(), share = row.share();
    const bool ratio = predicted && share && *predicted > 0;
    table.add({row.name, std::to_string(row.planned), std::to_string(row.measured), share_text(predicted),
               share_text(share), ratio ? percent(*share / *predicted) : "-", us_short(row.exposed)});
  }
  return table.empty() ? std::string() : "\n" + table.text();
}

std::string kinds_text(const Comparison& c) {
  TextTable table({"op", "where", "count", "predicted us", "measured us", "median", "worst", "worst op"}, true);
  for (const KindRow& row : c.kinds)
    table.add({std::string(op_name(row.kind)), row.overlapped ? "in overlap" : "alone", std::to_string(row.count),
               us_short(row.predicted), us_short(row.measured), percent(row.error, true), percent(row.worst, true),
               row.worst_op});
  return table.empty() ? std::string() : "\n" + table.text();
}

std::string step_text(const Comparison& c) {
  std::string out = "\nstep       predicted " + ms_text(c.predicted_step) + ", measured " + ms_text(c.measured_step) +
                    ", " + percent(c.step_error(), true) + "\nexposed    predicted " + ms_text(c.predicted_exposed) +
                    ", measured " + ms_text(c.measured_exposed) + "\n";
  if (c.baseline_step) {
    const double gain = static_cast<double>(c.baseline_step->count()) /
                        static_cast<double>(std::max<std::int64_t>(1, c.measured_step.count()));
    out += "un-split   " + ms_text(*c.baseline_step) + (c.baseline_measured ? " measured" : " predicted") + ", gain " +
           fixed_text(gain, 3) + "\n";
  }
  TextTable table({"compute lane", "predicted ms", "measured ms", "difference", "of step", "assumption"}, true);
  for (const StepPart& part : c.parts) {
    const Ns difference = part.measured - part.predicted;
    const double share = static_cast<double>(difference.count()) /
                         static_cast<double>(std::max<std::int64_t>(1, c.predicted_step.count()));
    table.add({part.what, fixed_text(static_cast<double>(part.predicted.count()) / 1e6, 3),
               fixed_text(static_cast<double>(part.measured.count()) / 1e6, 3),
               fixed_text(static_cast<double>(difference.count()) / 1e6, 3), percent(share, true), part.assumption});
  }
  return out + table.text();
}

std::string verdict_text(const Comparison& c) {
  std::string out;
  for (const NamedFinding& finding : c.findings) {
    out += "\n" + finding.code + "  " + finding.title + "\n";
    for (const std::string& line : finding.evidence) out += "    " + line + "\n";
  }
  TextTable table({"criterion", "value", "allowed", ""}, true);
  for (const Criterion& criterion : c.criteria)
    table.add({criterion.what, criterion.value, criterion.allowed, criterion.ok ? "ok" : "MISS"});
  return out + "\n" + table.text() + "\nverdict    " + (c.pass() ? "within tolerance\n" : "outside tolerance\n");
}

Json ns(Ns time) {
  return time.count();
}
Json rounded(double value) {
  return static_cast<double>(static_cast<std::int64_t>(value * 1e6 + (value < 0 ? -0.5 : 0.5))) / 1e6;
}
Json rounded(const std::optional<double>& value) {
  return value ? rounded(*value) : Json();
}

Json windows_json(const Comparison& c) {
  Json list = Json::array();
  for (const WindowRow& row : c.windows) {
    Json one = Json::object();
    one.set("name", row.name);
    one.set("planned", row.planned);
    one.set("measured", row.measured);
    one.set("predicted_hidden_ns", ns(row.predicted_hidden));
    one.set("predicted_exposed_ns", ns(row.predicted_exposed));
    one.set("hidden_ns", ns(row.hidden));
    one.set("exposed_ns", ns(row.exposed));
    one.set("predicted_share", rounded(row.predicted_share()));
    one.set("share", rounded(row.share()));
    list.push(std::move(one));
  }
  return list;
}

Json kinds_json(const Comparison& c) {
  Json list = Json::array();
  for (const KindRow& row : c.kinds) {
    Json one = Json::object();
    one.set("op", op_name(row.kind));
    one.set("overlapped", row.overlapped);
    one.set("count", row.count);
    one.set("predicted_ns", ns(row.predicted));
    one.set("measured_ns", ns(row.measured));
    one.set("median_error", rounded(row.error));
    one.set("worst_error", rounded(row.worst));
    one.set("worst_op", row.worst_op);
    list.push(std::move(one));
  }
  return list;
}

Json order_json(const Comparison& c) {
  Json order = Json::object();
  order.set("kept", c.order.empty() && !c.divergence);
  if (c.divergence) {
    Json first = Json::object();
    first.set("rank", static_cast<std::int64_t>(c.divergence->rank));
    first.set("lane", c.divergence->lane);
    first.set("position", static_cast<std::int64_t>(c.divergence->position));
    first.set("before", c.divergence->before);
    first.set("planned", c.divergence->planned);
    first.set("measured", c.divergence->measured);
    order.set("first_divergence", std::move(first));
  } else {
    order.set("first_divergence", Json());
  }
  Json list = Json::array();
  for (const OrderFinding& finding : c.order) {
    Json one = Json::object();
    one.set("kind", finding_name(finding.kind));
    one.set("rank", finding.rank);
    one.set("text", finding.text);
    list.push(std::move(one));
  }
  order.set("findings", std::move(list));
  return order;
}

}  // namespace

std::string comparison_text(const Comparison& c) {
  return head_text(c) + order_text(c) + clocks_text(c) + windows_text(c) + kinds_text(c) + step_text(c) +
         verdict_text(c);
}

Json comparison_json(const Comparison& c) {
  Json out = Json::object();
  out.set("predicted", c.predicted_file);
  out.set("measured", c.measured_file);
  out.set("plan_hash", c.plan_hash.empty() ? Json() : Json(c.plan_hash));
  out.set("same_plan", c.same_plan);
  out.set("joined", c.joined);
  out.set("only_predicted", c.only_predicted);
  out.set("only_measured", c.only_measured);
  out.set("order", order_json(c));
  Json clocks = Json::array();
  for (const RankClock& clock : c.clocks) {
    Json one = Json::object();
    one.set("rank", static_cast<std::int64_t>(clock.rank));
    one.set("offset_ns", ns(clock.offset));
    one.set("drift_ppm", rounded(clock.drift_ppm));
    one.set("residual_ns", ns(clock.residual));
    one.set("measurements", clock.measurements);
    clocks.push(std::move(one));
  }
  out.set("clocks", std::move(clocks));
  out.set("windows", windows_json(c));
  out.set("ops", kinds_json(c));
  out.set("predicted_step_ns", ns(c.predicted_step));
  out.set("measured_step_ns", ns(c.measured_step));
  out.set("step_error", rounded(c.step_error()));
  out.set("predicted_exposed_comm_ns", ns(c.predicted_exposed));
  out.set("measured_exposed_comm_ns", ns(c.measured_exposed));
  out.set("baseline_step_ns", c.baseline_step ? ns(*c.baseline_step) : Json());
  Json parts = Json::array();
  for (const StepPart& part : c.parts) {
    Json one = Json::object();
    one.set("what", part.what);
    one.set("predicted_ns", ns(part.predicted));
    one.set("measured_ns", ns(part.measured));
    one.set("assumption", part.assumption);
    parts.push(std::move(one));
  }
  out.set("step_parts", std::move(parts));
  Json findings = Json::array();
  for (const NamedFinding& finding : c.findings) {
    Json one = Json::object();
    one.set("code", finding.code);
    one.set("title", finding.title);
    Json evidence = Json::array();
    for (const std::string& line : finding.evidence) evidence.push(line);
    one.set("evidence", std::move(evidence));
    findings.push(std::move(one));
  }
  out.set("findings", std::move(findings));
  Json criteria = Json::array();
  for (const Criterion& criterion : c.criteria) {
    Json one = Json::object();
    one.set("what", criterion.what);
    one.set("ok", criterion.ok);
    one.set("value", criterion.value);
    one.set("allowed", criterion.allowed);
    criteria.push(std::move(one));
  }
  out.set("criteria", std::move(criteria));
  out.set("pass", c.pass());
  return out;
}

}  // namespace dbo
