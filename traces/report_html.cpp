#include "traces/report_html.h"

#include <algorithm>
#include <cmath>

#include "sim/base/data_file.h"
#include "sim/base/error.h"
#include "traces/op_style.h"
#include "traces/overlap.h"
#include "traces/text_table.h"
#include "traces/timeline_svg.h"

namespace dbo {

extern const DataFile kReportData[];
extern const unsigned kReportData_count;

namespace {

std::string_view data_file(std::string_view name) {
  for (unsigned i = 0; i < kReportData_count; ++i)
    if (kReportData[i].name == name) return kReportData[i].text;
  throw InternalError("a part of the report is missing: " + std::string(name));
}

std::string html(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  }
  return out;
}

std::string percent(double share, bool sign = false) {
  return (sign && share >= 0 ? "+" : "") + fixed_text(share * 100, 1) + " %";
}
std::string share_text(const std::optional<double>& share) {
  return share ? percent(*share) : "–";
}

/// A table for people and screen readers: a caption, a head, row headers.
class HtmlTable {
 public:
  HtmlTable(std::string_view id, std::string_view caption, const std::vector<std::string>& head) {
    text_ = "<table id=\"" + std::string(id) + "\"><caption>" + html(caption) + "</caption>\n<thead><tr>";
    for (const std::string& cell : head) text_ += "<th scope=\"col\">" + html(cell) + "</th>";
    text_ += "</tr></thead>\n<tbody>\n";
  }
  /// Cells are HTML already.
  void add(const std::vector<std::string>& row) {
    text_ += "<tr><th scope=\"row\">" + row.front() + "</th>";
    for (std::size_t i = 1; i < row.size(); ++i) {
      const bool whole = row[i].rfind("<td", 0) == 0;
      text_ += whole ? row[i] : "<td>" + row[i] + "</td>";
    }
    text_ += "</tr>\n";
  }
  std::string text() const { return text_ + "</tbody></table>\n"; }

 private:
  std::string text_;
};

std::string words(std::string_view text) {
  return "<td class=\"words\">" + html(text) + "</td>";
}

/// An error as a bar from the middle: the median as a block, the worst as a line, both cut at +-100 %.
std::string error_bar(double median, double worst) {
  constexpr int kHalf = 70;
  const auto x = [&](double error) {
    return kHalf + static_cast<int>(std::lround(std::clamp(error, -1.0, 1.0) * kHalf));
  };
  const int middle = kHalf, at = x(median), far = x(worst);
  const int left = std::min(middle, at), width = std::max(1, std::abs(at - middle));
  return "<td><svg class=\"bar\" width=\"" + std::to_string(2 * kHalf + 2) +
         "\" height=\"16\" role=\"img\" aria-label=\"median " + percent(median, true) + ", worst " +
         percent(worst, true) + "\"><path d=\"M" + std::to_string(middle) + " 0V16\" stroke=\"#8c959f\"/><path d=\"M" +
         std::to_string(middle) + " 8H" + std::to_string(far) + "\" stroke=\"#57606a\"/><rect x=\"" +
         std::to_string(left) + "\" y=\"3\" width=\"" + std::to_string(width) + "\" height=\"10\" fill=\"" +
         (std::abs(median) > 0.25 ? "#b42318" : "#0550ae") + "\"/></svg></td>";
}

/// A share of the largest one as a bar.
std::string share_bar(Ns part, Ns largest, const char* colour) {
  const int width = largest.count() == 0 ? 0 : static_cast<int>(160 * part.count() / largest.count());
  return "<td><svg class=\"bar\" width=\"162\" height=\"14\" aria-hidden=\"true\"><rect x=\"0\" y=\"2\" width=\"" +
         std::to_string(std::max(part.count() > 0 ? 1 : 0, width)) + "\" height=\"10\" fill=\"" + colour +
         "\"/></svg></td>";
}

class Report {
 public:
  Report(const CompareInput& input, const Comparison& comparison, const ReportOptions& options)
      : input_(input), c_(comparison), options_(options) {}

  std::string text() {
    std::string out =
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<meta name=\"viewport\" "
        "content=\"width=device-width, initial-scale=1\">\n<title>" +
        html(options_.title) + "</title>\n<style>\n" + std::string(data_file("style")) + "</style></head>\n<body>\n";
    out += "<a class=\"skip\" href=\"#windows\">Skip the timelines</a>\n<header>" + header() + "</header>\n<main>\n";
    out += findings() + order() + timelines() + windows() + errors() + bubbles() + step() + criteria() + assumptions();
    out += "</main>\n<div id=\"tip\" aria-hidden=\"true\"></div>\n<script type=\"application/json\" id=\"data\">";
    out += script_safe(compact_json(data()));
    out += "</script>\n<script>\n" + std::string(data_file("script")) + "</script>\n</body></html>\n";
    return out;
  }

 private:
  /// JSON inside a script element: nothing in it may close the element.
  static std::string script_safe(const std::string& json) {
    std::string out;
    out.reserve(json.size());
    for (const char c : json) {
      if (c == '<')
        out += "\\u003c";
      else
        out += c;
    }
    return out;
  }

  std::string header() const {
    std::string out = "<h1>" + html(options_.title) + " <span id=\"verdict\" class=\"verdict " +
                      (c_.pass() ? "pass\">within tolerance" : "miss\">outside tolerance") +
                      "</span></h1>\n<dl class=\"facts\">";
    const auto fact = [&](const char* what, const std::string& value) {
      out += "<dt>" + std::string(what) + "</dt><dd>" + html(value) + "</dd>\n";
    };
    fact("Step", "predicted " + ms_text(c_.predicted_step) + ", measured " + ms_text(c_.measured_step) + " (" +
                     percent(c_.step_error(), true) + ")");
    fact("Exposed communication",
         "predicted " + ms_text(c_.predicted_exposed) + ", measured " + ms_text(c_.measured_exposed));
    if (c_.baseline_step)
      fact("Un-split step", ms_text(*c_.baseline_step) + (c_.baseline_measured ? ", measured" : ", predicted") +
                                "; gain " +
                                fixed_text(static_cast<double>(c_.baseline_step->count()) /
                                               static_cast<double>(std::max<std::int64_t>(1, c_.measured_step.count())),
                                           3));
    fact("Plan", c_.plan_hash.empty() ? "none" : c_.plan_hash);
    fact("Ops joined", grouped(c_.joined) + " on " + std::to_string(c_.ranks.size()) + " ranks; only predicted " +
                           grouped(c_.only_predicted) + ", only measured " + grouped(c_.only_measured));
    fact("Predicted trace", c_.predicted_file);
    fact("Measured trace", c_.measured_file + (c_.foreign ? " (a profiler's)" : ""));
    return out + "</dl>\n";
  }

  std::string findings() const {
    if (c_.findings.empty())
      return "<h2 id=\"findings\">Findings</h2>\n<p>No named failure shows in these traces.</p>\n";
    std::string out = "<h2 id=\"findings\">Findings</h2>\n<ul class=\"findings\">\n";
    for (const NamedFinding& finding : c_.findings) {
      out += "<li><b>" + html(finding.code) + "</b> " + html(finding.title) + "<ul>";
      for (const std::string& line : finding.evidence) out += "<li>" + html(line) + "</li>";
      out += "</ul></li>\n";
    }
    return out + "</ul>\n";
  }

  std::string order() const {
    std::string out = "<h2 id=\"order\">Order and dependencies</h2>\n";
    if (c_.order.empty() && !c_.divergence) out += "<p>Kept on every lane of every rank.</p>\n";
    if (c_.divergence) {
      const Divergence& d = *c_.divergence;
      out += "<p>First divergence: rank " + std::to_string(d.rank) + ", lane " + html(d.lane) + ", op " +
             std::to_string(d.position) + (d.before.empty() ? "" : ", after " + html(d.before)) +
             ". Planned: " + jump(d.planned, d.rank) + " Measured: " + jump(d.measured, d.rank) + "</p>\n";
    }
    if (!c_.order.empty()) {
      constexpr std::size_t kShown = 8;
      const auto list = [&](std::size_t from, std::size_t to) {
        std::string items = "<ul>\n";
        for (std::size_t i = from; i < to; ++i)
          items += "<li>" + html(finding_name(c_.order[i].kind)) + ": " + html(c_.order[i].text) + "</li>\n";
        return items + "</ul>\n";
      };
      out += list(0, std::min(kShown, c_.order.size()));
      if (c_.order.size() > kShown)
        out += "<details><summary>" + std::to_string(c_.order.size() - kShown) + " more</summary>" +
               list(kShown, c_.order.size()) + "</details>\n";
    }
    HtmlTable clocks("clocks", "Clocks against the first rank",
                     {"rank", "offset µs", "drift ppm", "residual µs", "exchanges"});
    bool any = false;
    for (std::size_t i = 1; i < c_.clocks.size(); ++i) {
      const RankClock& clock = c_.clocks[i];
      if (clock.measurements < 2) continue;
      any = true;
      clocks.add({std::to_string(clock.rank), us_short(clock.offset), fixed_text(clock.drift_ppm, 2),
                  us_short(clock.residual), std::to_string(clock.measurements)});
    }
    return out + (any ? clocks.text() : "");
  }

  /// A button that goes to an op of the timelines.
  static std::string jump(const std::string& op, std::int32_t rank) {
    std::string query;
    for (const char c : op)
      if (c != ',') query += c;
    if (const auto of = query.find(" of "); of != std::string::npos) query.replace(of, 4, " ");
    return "<button type=\"button\" data-jump=\"" + html(query) + " rank " + std::to_string(rank) + "\">" + html(op) +
           "</button>";
  }

  std::string timelines() const {
    std::string out =
        "<h2 id=\"timelines\">Timelines</h2>\n<div class=\"controls\" role=\"group\" aria-label=\"Timeline "
        "controls\">\n"
        "<button type=\"button\" id=\"zoom-in\">Zoom in</button><button type=\"button\" id=\"zoom-out\">Zoom "
        "out</button>"
        "<button type=\"button\" id=\"zoom-all\">Whole step</button><button type=\"button\" id=\"zoom-layer\">One "
        "steady "
        "layer</button>\n<label>Rank <select id=\"rank\"><option value=\"\">all</option>";
    for (const std::int32_t rank : shown_ranks()) out += "<option>" + std::to_string(rank) + "</option>";
    out +=
        "</select></label>\n<label>Go to op <input id=\"jump\" type=\"search\" placeholder=\"A1 ubatch 0 layer "
        "3\"></label>"
        "<button type=\"button\" id=\"jump-go\">Go</button>\n</div>\n"
        "<p class=\"hidden\" id=\"keys\">Arrow keys go from op to op and lane to lane, plus and minus zoom, Enter "
        "zooms to "
        "the op, Page Up and Page Down move in time, Home shows the whole step.</p>\n"
        "<p id=\"chosen\" role=\"status\" aria-live=\"polite\"></p>\n";
    for (const char* name : {"predicted", "measured"})
      out += "<section class=\"timeline\"><h3>" + std::string(name) + "</h3><div class=\"rows\"><canvas id=\"" + name +
             "\" tabindex=\"0\" role=\"application\" aria-label=\"" + name +
             " timeline\" aria-describedby=\"keys\"></canvas></div></section>\n";
    out += "<div class=\"legend\" aria-hidden=\"true\">";
    std::vector<bool> seen(kOpKinds);
    for (const Trace* trace : {&input_.predicted, &input_.measured})
      for (const TraceOp& op : trace->ops) seen[static_cast<std::size_t>(op.kind)] = true;
    for (int kind = 0; kind < kOpKinds; ++kind) {
      if (!seen[static_cast<std::size_t>(kind)]) continue;
      const auto k = static_cast<OpKind>(kind);
      out += "<span><i style=\"background:" + std::string(op_colour(k, 0)) +
             "\"></i><i style=\"background:" + std::string(op_colour(k, 1)) + "\"></i> " + std::string(op_name(k)) +
             "</span>";
    }
    return out +
           "<span>lighter and darker: even and odd ubatches; drag to move, wheel to zoom</span></div>\n"
           "<noscript><p>The timelines need scripts; everything below does not.</p></noscript>\n";
  }

  std::string windows() const {
    std::string out = "<h2 id=\"windows\">Windows</h2>\n";
    if (c_.windows.empty()) return out + "<p>The plan was not at hand, so its intended overlaps are not known.</p>\n";
    HtmlTable table("window-table", "Time transfers were hidden behind compute, by intended overlap",
                    {"window", "planned", "seen", "hidden, predicted", "hidden, measured", "achieved", "exposed µs"});
    for (const WindowRow& row : c_.windows) {
      const auto predicted = row.predicted_share(), share = row.share();
      const bool ratio = predicted && share && *predicted > 0;
      const bool bad = predicted && share && *share < *predicted - 0.15;
      table.add(
          {html(row.name), std::to_string(row.planned), std::to_string(row.measured), share_text(predicted),
           share_text(share),
           std::string(bad ? "<td class=\"bad\">" : "<td>") + (ratio ? percent(*share / *predicted) : "–") + "</td>",
           us_short(row.exposed)});
    }
    return out + table.text();
  }

  std::string errors() const {
    HtmlTable table("error-table",
                    "Measured over predicted duration, by kind of op, alone and beside communication (or compute)",
                    {"op", "where", "count", "predicted µs", "measured µs", "median error", "−100 % to +100 %", "worst",
                     "worst op"});
    for (const KindRow& row : c_.kinds) {
      const auto rank = row.worst_op.rfind(", rank ");
      const std::string op = rank == std::string::npos ? row.worst_op : row.worst_op.substr(0, rank);
      const std::int32_t number = rank == std::string::npos ? 0 : std::stoi(row.worst_op.substr(rank + 7));
      table.add({html(op_name(row.kind)), row.overlapped ? "in overlap" : "alone", std::to_string(row.count),
                 us_short(row.predicted), us_short(row.measured), percent(row.error, true),
                 error_bar(row.error, row.worst), percent(row.worst, true),
                 "<td class=\"words\">" + (op.empty() ? "" : jump(op, number)) + "</td>"});
    }
    return "<h2 id=\"errors\">Durations</h2>\n" + table.text();
  }

  std::string bubbles() const {
    std::string out = "<h2 id=\"bubbles\">Bubbles</h2>\n";
    Ns largest{0};
    HtmlTable table("bubble-table", "Why the compute lane was idle", {"cause", "time µs", ""});
    for (const auto& [cause, time] : options_.bubbles) largest = std::max(largest, time);
    for (const auto& [cause, time] : options_.bubbles)
      table.add({html("predicted: " + cause), us_short(time), share_bar(time, largest, "#0550ae")});
    for (const StepPart& part : c_.parts) {
      if (part.what != "idle" && part.what != "waiting in receives") continue;
      const Ns most = std::max({largest, part.predicted, part.measured});
      table.add(
          {html("predicted, " + part.what), us_short(part.predicted), share_bar(part.predicted, most, "#0550ae")});
      table.add({html("measured, " + part.what), us_short(part.measured), share_bar(part.measured, most, "#b35900")});
    }
    return out + table.text();
  }

  std::string step() const {
    HtmlTable table("step-table", "What the step's error is made of, on the compute lane of the slowest rank",
                    {"part", "predicted ms", "measured ms", "difference ms", "of step", "assumption responsible"});
    for (const StepPart& part : c_.parts) {
      const Ns difference = part.measured - part.predicted;
      table.add({html(part.what), fixed_text(static_cast<double>(part.predicted.count()) / 1e6, 3),
                 fixed_text(static_cast<double>(part.measured.count()) / 1e6, 3),
                 fixed_text(static_cast<double>(difference.count()) / 1e6, 3),
                 percent(static_cast<double>(difference.count()) /
                             static_cast<double>(std::max<std::int64_t>(1, c_.predicted_step.count())),
                         true),
                 words(part.assumption)});
    }
    return "<h2 id=\"step\">Step</h2>\n" + table.text();
  }

  std::string criteria() const {
    HtmlTable table("criteria-table", "What was asked and what came", {"criterion", "value", "allowed", "result"});
    for (const Criterion& one : c_.criteria)
      table.add({html(one.what), html(one.value), html(one.allowed),
                 one.ok ? "<td class=\"ok\">ok</td>" : "<td class=\"bad\">miss</td>"});
    return "<h2 id=\"criteria\">Criteria</h2>\n" + table.text();
  }

  std::string assumptions() const {
    std::string out = "<h2 id=\"assumptions\">Assumptions of the prediction</h2>\n";
    if (options_.assumptions.empty()) return out + "<p>None are recorded with the predicted trace.</p>\n";
    out += "<ul>\n";
    for (const std::string& line : options_.assumptions) out += "<li>" + html(line) + "</li>\n";
    return out + "</ul>\n";
  }

  std::vector<std::int32_t> shown_ranks() const {
    std::vector<std::int32_t> ranks = ranks_of(input_.predicted), more = ranks_of(input_.measured);
    ranks.insert(ranks.end(), more.begin(), more.end());
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
    return ranks;
  }

  /// Ops as one flat list of numbers, nine each: small, and quick to parse.
  Json trace_json(const Trace& trace, const char* title) const {
    std::vector<std::uint32_t> order(trace.ops.size());
    for (std::uint32_t i = 0; i < order.size(); ++i) order[i] = i;
    if (order.size() > options_.max_ops) {
      std::stable_sort(order.begin(), order.end(),
                       [&](std::uint32_t a, std::uint32_t b) { return trace.ops[a].start < trace.ops[b].start; });
      order.resize(options_.max_ops);
      std::sort(order.begin(), order.end());
    }
    SimTime first{};
    for (const TraceOp& op : trace.ops) first = std::min(first, op.start);
    std::vector<std::int64_t> place(trace.ops.size(), -1);
    Json ops = Json::array(), flows = Json::array();
    for (const std::uint32_t i : order) {
      const TraceOp& op = trace.ops[i];
      place[i] = static_cast<std::int64_t>(ops.items().size() / 9);
      for (const std::int64_t value : {std::int64_t{op.rank}, std::int64_t{op.lane}, static_cast<std::int64_t>(op.kind),
                                       std::int64_t{op.layer}, std::int64_t{op.ubatch}, (op.start - first).count(),
                                       (op.end - first).count(), op.waited.count(), std::int64_t{op.name}})
        ops.push(value);
    }
    for (const TraceFlow& flow : trace.flows) {
      if (place[flow.from] < 0 || place[flow.to] < 0) continue;
      flows.push(flow.kind == TraceFlow::Kind::Data ? 1 : 0);
      flows.push(place[flow.from]);
      flows.push(place[flow.to]);
    }
    Json lanes = Json::array(), names = Json::array();
    for (const std::string& lane : trace.lanes) lanes.push(lane);
    for (const std::string& name : trace.names) names.push(name);
    Json out = Json::object();
    out.set("title", title);
    out.set("lanes", std::move(lanes));
    out.set("names", std::move(names));
    out.set("ops", std::move(ops));
    out.set("flows", std::move(flows));
    return out;
  }

  Json data() const {
    Json out = Json::object();
    Json traces = Json::array(), kinds = Json::array(), colours = Json::array(), ranks = Json::array();
    traces.push(trace_json(input_.predicted, "predicted"));
    traces.push(trace_json(input_.measured, "measured"));
    for (int kind = 0; kind < kOpKinds; ++kind) {
      kinds.push(op_name(static_cast<OpKind>(kind)));
      Json pair = Json::array();
      pair.push(op_colour(static_cast<OpKind>(kind), 0));
      pair.push(op_colour(static_cast<OpKind>(kind), 1));
      colours.push(std::move(pair));
    }
    for (const std::int32_t rank : shown_ranks()) ranks.push(static_cast<std::int64_t>(rank));
    out.set("traces", std::move(traces));
    out.set("kinds", std::move(kinds));
    out.set("colours", std::move(colours));
    out.set("ranks", std::move(ranks));
    Json like = Json::object();
    for (const std::int32_t rank : c_.ranks)
      like.set(std::to_string(rank), static_cast<std::int64_t>(predicted_rank_for(input_, rank)));
    out.set("like", std::move(like));
    const std::vector<std::int32_t> predicted = ranks_of(input_.predicted);
    const auto steady = predicted.empty() ? std::nullopt : steady_window(input_.predicted, predicted.front());
    Json window = Json();
    if (steady) {
      window = Json::array();
      window.push(steady->begin.time_since_epoch().count());
      window.push(steady->end.time_since_epoch().count());
    }
    out.set("steady", std::move(window));
    return out;
  }

  const CompareInput& input_;
  const Comparison& c_;
  const ReportOptions& options_;
};

}  // namespace

std::string report_html(const CompareInput& input, const Comparison& comparison, const ReportOptions& options) {
  return Report(input, comparison, options).text();
}

}  // namespace dbo
