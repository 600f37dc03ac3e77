#include "validate/measured.h"

#include "sim/base/error.h"
#include "sim/base/hash.h"
#include "sim/plan/plan_json.h"

namespace dbo::validate {
namespace {

Json numbers_json(const std::vector<double>& values) {
  Json json = Json::array();
  for (const double value : values) json.push(value);
  return json;
}

std::vector<double> read_numbers(const JsonRef& ref) {
  std::vector<double> values;
  for (const JsonRef& item : ref.items()) values.push_back(item.number(-1e12, 1e12));
  return values;
}

/// What wires last on a replay, for comparison; empty: real ones.
std::string wires_hash(const std::vector<Ns>& wires) {
  if (wires.empty()) return {};
  std::string text;
  for (const Ns wire : wires) text += std::to_string(wire.count()) + ' ';
  return hash_text(content_hash(text));
}

Json plan_json(const PredictedPlan& predicted, const MeasuredPlan& measured) {
  Json json = Json::object();
  json.set("plan_hash", plan_hash(predicted.plan));
  json.set("wires_hash", wires_hash(predicted.wires));
  json.set("tracing_us", measured.tracing_us);
  json.set("steps_us", numbers_json(measured.steps_us));
  json.set("host_us", numbers_json(measured.host_us));
  json.set("clocks_mhz", numbers_json(measured.clocks_mhz));
  json.set("traced_mhz", numbers_json(measured.traced_mhz));
  json.set("op_us", numbers_json(measured.op_us));
  json.set("entry_us", numbers_json(measured.entry_us));
  return json;
}

MeasuredPlan read_plan(const JsonRef& ref, const PredictedPlan& predicted) {
  ObjectReader reader(ref, "a plan as replayed");
  const JsonRef hash = reader.require("plan_hash"), wires = reader.require("wires_hash");
  if (hash.string() != plan_hash(predicted.plan))
    hash.fail("is another plan than the config's now, " + plan_hash(predicted.plan) +
              ": what was measured says nothing of it; replay it anew");
  if (wires.string() != wires_hash(predicted.wires))
    wires.fail("stands for other wires than the cost model now gives the config's fabric: replay it anew");
  MeasuredPlan plan;
  plan.tracing_us = reader.require("tracing_us").number(-1e12, 1e12);
  plan.steps_us = read_numbers(reader.require("steps_us"));
  plan.host_us = read_numbers(reader.require("host_us"));
  plan.clocks_mhz = read_numbers(reader.require("clocks_mhz"));
  plan.traced_mhz = read_numbers(reader.require("traced_mhz"));
  plan.op_us = read_numbers(reader.require("op_us"));
  plan.entry_us = read_numbers(reader.require("entry_us"));
  reader.done();
  return plan;
}

}  // namespace

Json measured_to_json(const ValidationCase& validated, const MeasuredCase& measured) {
  Json json = Json::object();
  json.set("format", 1);
  json.set("device", measured.device);
  json.set("versions", measured.versions);
  json.set("highest_mhz", measured.highest_mhz);
  Json how = Json::array();
  for (const std::string& line : measured.how) how.push(line);
  json.set("how", std::move(how));
  Json ways = Json::array();
  for (std::size_t w = 0; w < measured.ways.size(); ++w) {
    Json way = Json::object();
    way.set("graph", measured.ways[w].graph);
    way.set("split", plan_json(validated.ways[w].split, measured.ways[w].split));
    way.set("unsplit", plan_json(validated.ways[w].unsplit, measured.ways[w].unsplit));
    ways.push(std::move(way));
  }
  json.set("ways", std::move(ways));
  return json;
}

MeasuredCase measured_from_json(const JsonRef& ref, const ValidationCase& validated) {
  ObjectReader reader(ref, "what a replay measured");
  reader.require("format").integer(1, 1);
  MeasuredCase measured;
  measured.device = reader.require("device").string();
  measured.versions = reader.require("versions").string();
  measured.highest_mhz = reader.require("highest_mhz").number(0, 1e6);
  for (const JsonRef& line : reader.require("how").items()) measured.how.push_back(line.string());
  const JsonRef ways = reader.require("ways");
  const std::vector<JsonRef> items = ways.items();
  if (items.size() != validated.ways.size())
    ways.fail("must be the " + std::to_string(validated.ways.size()) + " of the outcome beside it");
  for (std::size_t w = 0; w < items.size(); ++w) {
    ObjectReader way(items[w], "one way of running");
    const JsonRef graph = way.require("graph");
    if (graph.boolean() != validated.ways[w].graph) graph.fail("must be as in the outcome beside it");
    measured.ways.push_back({graph.boolean(), read_plan(way.require("split"), validated.ways[w].split),
                             read_plan(way.require("unsplit"), validated.ways[w].unsplit)});
    way.done();
  }
  reader.done();
  return measured;
}

}  // namespace dbo::validate
