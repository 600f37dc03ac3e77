#include "sim/cost/host_costs.h"

#include "sim/base/data_file.h"
#include "sim/base/error.h"

namespace dbo {

extern const DataFile kHostData[];
extern const unsigned kHostData_count;

namespace {

void read_us(ObjectReader& reader, std::string_view key, Ns& field) {
  if (const auto value = reader.find(key)) field = ns_from_us(value->number(0, 1e9));
}

void read_keys(ObjectReader& reader, HostCosts& host) {
  read_us(reader, "launch_us", host.launch);
  read_us(reader, "record_us", host.record);
  read_us(reader, "wait_us", host.wait);
  read_us(reader, "yield_us", host.yield);
  read_us(reader, "graph_launch_us", host.graph_launch);
  read_us(reader, "node_gap_us", host.node_gap);
  read_us(reader, "lane_gap_us", host.lane_gap);
}

/// Stated gaps are those of either mode.
void take_stated_gaps(ObjectReader& reader, HostCosts& host) {
  read_us(reader, "node_gap_us", host.eager_node_gap);
  read_us(reader, "lane_gap_us", host.eager_lane_gap);
}

}  // namespace

std::vector<std::string_view> host_preset_names() {
  return {"cpp", "python"};
}

HostCosts host_preset(std::string_view name) {
  DBO_CHECK(kHostData_count == 1, "host costs are one data file");
  ObjectReader presets{JsonRef(json_document(kHostData[0].text, "host presets"))};
  bool known = false;
  for (const std::string_view preset : host_preset_names()) known = known || preset == name;
  if (!known) throw InputError("unknown host \"" + std::string(name) + "\" " + known_names(name, host_preset_names()));
  ObjectReader reader(presets.require(name));
  HostCosts host;
  read_keys(reader, host);
  read_us(reader, "eager_node_gap_us", host.eager_node_gap);
  read_us(reader, "eager_lane_gap_us", host.eager_lane_gap);
  reader.require("source").string();
  reader.done();
  return host;
}

HostCosts read_host_costs(const JsonRef& ref) {
  if (ref.value().is_string()) return host_preset(host_preset_names()[ref.one_of(host_preset_names(), "host")]);
  ObjectReader reader(ref, "\"cpp\", \"python\" or an object of times");
  HostCosts host = host_preset("cpp");
  read_keys(reader, host);
  take_stated_gaps(reader, host);
  reader.done();
  return host;
}

}  // namespace dbo
