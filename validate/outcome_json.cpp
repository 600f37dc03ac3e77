// The JSON form of what a validation found.
#include "validate/outcome.h"

namespace dbo::validate {
namespace {

Json figure_json(const Figure& figure) {
  Json json = Json::object();
  json.set("median_us", figure.median_us);
  json.set("spread_us", figure.spread_us);
  json.set("count", figure.count);
  return json;
}

Figure read_figure(const JsonRef& ref) {
  ObjectReader reader(ref, "a median with its spread");
  Figure figure;
  figure.median_us = reader.require("median_us").number(0, 1e12);
  figure.spread_us = reader.require("spread_us").number(0, 1e12);
  figure.count = static_cast<int>(reader.require("count").integer(0, 1 << 30));
  reader.done();
  return figure;
}

Json anchor_json(const std::optional<Anchor>& anchor) {
  if (!anchor) return nullptr;
  Json json = Json::object();
  json.set("gemm_us", anchor->gemm_us);
  json.set("copy_us", anchor->copy_us);
  return json;
}

std::optional<Anchor> read_anchor(const JsonRef& ref) {
  if (ref.value().is_null()) return std::nullopt;
  ObjectReader reader(ref, "anchor times");
  const Anchor anchor{reader.require("gemm_us").number(0, 1e12), reader.require("copy_us").number(0, 1e12)};
  reader.done();
  return anchor;
}

Json rows_json(const std::vector<ErrorRow>& rows) {
  Json json = Json::array();
  for (const ErrorRow& row : rows) {
    Json one = Json::object();
    one.set("what", row.what);
    one.set("count", row.count);
    one.set("predicted", row.predicted);
    one.set("measured", row.measured);
    one.set("error", row.error);
    json.push(std::move(one));
  }
  return json;
}

std::vector<ErrorRow> read_rows(const JsonRef& ref) {
  std::vector<ErrorRow> rows;
  for (const JsonRef& item : ref.items()) {
    ObjectReader reader(item, "a row of errors");
    ErrorRow row;
    row.what = reader.require("what").string();
    row.count = static_cast<int>(reader.require("count").integer(0, 1 << 30));
    row.predicted = reader.require("predicted").number(-1e12, 1e12);
    row.measured = reader.require("measured").number(-1e12, 1e12);
    row.error = reader.require("error").number(-1e12, 1e12);
    reader.done();
    rows.push_back(std::move(row));
  }
  return rows;
}

Json texts_json(const std::vector<std::string>& texts) {
  Json json = Json::array();
  for (const std::string& text : texts) json.push(text);
  return json;
}

std::vector<std::string> read_texts(const JsonRef& ref) {
  std::vector<std::string> texts;
  for (const JsonRef& item : ref.items()) texts.push_back(item.string());
  return texts;
}

Json way_json(const WayOutcome& way) {
  Json json = Json::object();
  json.set("graph", way.graph);
  json.set("split", figure_json(way.split));
  json.set("unsplit", figure_json(way.unsplit));
  json.set("predicted_split_us", way.predicted_split_us);
  json.set("predicted_unsplit_us", way.predicted_unsplit_us);
  json.set("drift", way.drift.split);
  json.set("unsplit_drift", way.drift.unsplit);
  json.set("kinds", rows_json(way.kinds));
  json.set("windows", rows_json(way.windows));
  json.set("order_findings", way.order_findings);
  json.set("named", texts_json(way.named));
  json.set("largest_cause", way.largest_cause);
  json.set("tracing_us", way.tracing_us);
  json.set("split_mhz", way.split_mhz);
  json.set("unsplit_mhz", way.unsplit_mhz);
  json.set("predicted_mhz", way.predicted_mhz);
  json.set("recomputed_us", way.recomputed_us);
  json.set("structure_us", way.structure_us);
  return json;
}

WayOutcome read_way(const JsonRef& ref) {
  ObjectReader reader(ref, "one way of running");
  WayOutcome way;
  way.graph = reader.require("graph").boolean();
  way.split = read_figure(reader.require("split"));
  way.unsplit = read_figure(reader.require("unsplit"));
  way.predicted_split_us = reader.require("predicted_split_us").number(0, 1e12);
  way.predicted_unsplit_us = reader.require("predicted_unsplit_us").number(0, 1e12);
  way.drift.split = reader.require("drift").number(0, 1e6);
  way.drift.unsplit = reader.require("unsplit_drift").number(0, 1e6);
  way.kinds = read_rows(reader.require("kinds"));
  way.windows = read_rows(reader.require("windows"));
  way.order_findings = static_cast<int>(reader.require("order_findings").integer(0, 1 << 30));
  way.named = read_texts(reader.require("named"));
  way.largest_cause = reader.require("largest_cause").string();
  way.tracing_us = reader.require("tracing_us").number(-1e12, 1e12);
  way.split_mhz = reader.require("split_mhz").number(0, 1e6);
  way.unsplit_mhz = reader.require("unsplit_mhz").number(0, 1e6);
  way.predicted_mhz = reader.require("predicted_mhz").number(0, 1e6);
  way.recomputed_us = reader.require("recomputed_us").number(0, 1e12);
  way.structure_us = reader.require("structure_us").number(0, 1e12);
  reader.done();
  return way;
}

}  // namespace

Json outcome_to_json(const Outcome& outcome) {
  Json json = Json::object();
  json.set("format", 1);
  json.set("name", outcome.name);
  json.set("key", outcome.key);
  json.set("what", outcome.what);
  json.set("device", outcome.device);
  json.set("versions", outcome.versions);
  json.set("gpus", outcome.gpus);
  json.set("emulated", outcome.emulated);
  json.set("notes", texts_json(outcome.notes));
  json.set("anchor_before", anchor_json(outcome.anchor_before));
  json.set("anchor_after", anchor_json(outcome.anchor_after));
  json.set("anchor_calibrated", anchor_json(outcome.anchor_calibrated));
  Json numerics = Json::object();
  numerics.set("same_bits", outcome.numerics.same_bits);
  numerics.set("split_error", outcome.numerics.split_error);
  numerics.set("split_bound", outcome.numerics.split_bound);
  numerics.set("tokens", outcome.numerics.tokens);
  numerics.set("audited_ops", outcome.numerics.audited);
  numerics.set("problems", texts_json(outcome.numerics.problems));
  json.set("numerics", std::move(numerics));
  Json ways = Json::array();
  for (const WayOutcome& way : outcome.ways) ways.push(way_json(way));
  json.set("ways", std::move(ways));
  json.set("injected", outcome.injected);
  json.set("seconds", outcome.seconds);
  json.set("failures", texts_json(outcome.failures()));
  return json;
}

Outcome outcome_from_json(const JsonRef& ref) {
  ObjectReader reader(ref, "the outcome of a validation");
  Outcome outcome;
  reader.require("format").integer(1, 1);
  outcome.name = reader.require("name").string();
  outcome.key = reader.require("key").string();
  outcome.what = reader.require("what").string();
  outcome.device = reader.require("device").string();
  outcome.versions = reader.require("versions").string();
  outcome.gpus = static_cast<int>(reader.require("gpus").integer(1, 1 << 16));
  outcome.emulated = reader.require("emulated").boolean();
  outcome.notes = read_texts(reader.require("notes"));
  outcome.anchor_before = read_anchor(reader.require("anchor_before"));
  outcome.anchor_after = read_anchor(reader.require("anchor_after"));
  outcome.anchor_calibrated = read_anchor(reader.require("anchor_calibrated"));
  ObjectReader numerics(reader.require("numerics"), "what the results were like");
  outcome.numerics.same_bits = numerics.require("same_bits").boolean();
  outcome.numerics.split_error = numerics.require("split_error").number(0, 1e12);
  outcome.numerics.split_bound = numerics.require("split_bound").number(0, 1e12);
  outcome.numerics.tokens = static_cast<int>(numerics.require("tokens").integer(0, 1 << 30));
  outcome.numerics.audited = static_cast<int>(numerics.require("audited_ops").integer(0, 1 << 30));
  outcome.numerics.problems = read_texts(numerics.require("problems"));
  numerics.done();
  for (const JsonRef& way : reader.require("ways").items()) outcome.ways.push_back(read_way(way));
  outcome.injected = reader.require("injected").string();
  outcome.seconds = reader.require("seconds").number(0, 1e9);
  // Worked out again from the rest.
  reader.require("failures").items();
  reader.done();
  return outcome;
}

}  // namespace dbo::validate
