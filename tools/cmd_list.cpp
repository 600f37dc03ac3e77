// dbo list: presets, schedules, transports.
#include <fmt/format.h>

#include "sim/base/json.h"
#include "sim/base/schedule_names.h"
#include "sim/base/transport.h"
#include "sim/model/presets.h"
#include "tools/commands.h"

namespace dbo {
namespace {

struct Row {
  std::string name;
  std::vector<std::pair<std::string, Json>> columns;
};

double round_to(double value, double unit) {
  return static_cast<double>(static_cast<std::int64_t>(value / unit + 0.5)) * unit;
}

std::vector<Row> models() {
  std::vector<Row> rows;
  for (const std::string_view name : model_names()) {
    const ModelShape m = model_preset(name);
    rows.push_back({std::string(name),
                    {{"layers", m.layers},
                     {"dense", m.layers - m.moe_layers()},
                     {"hidden", m.hidden},
                     {"attention", m.attention.kind == AttentionKind::Mla ? "mla" : "gqa"},
                     {"heads", m.attention.heads},
                     {"experts", m.moe.routed_experts},
                     {"top_k", m.moe.top_k},
                     {"width", m.moe.intermediate},
                     {"shared", m.moe.shared_experts}}});
  }
  return rows;
}

std::vector<Row> gpus() {
  std::vector<Row> rows;
  for (const std::string_view name : gpu_names()) {
    const GpuSpec g = gpu_preset(name);
    const double tera = 1e12, giga = 1e9;
    rows.push_back({std::string(name),
                    {{"sms", g.sms},
                     {"bf16_tflops", round_to(g.bf16_flops / tera, 1)},
                     {"fp8_tflops", round_to(g.fp8_flops / tera, 1)},
                     {"hbm_tb_per_s", round_to(g.hbm_bytes_per_s / tera, 0.01)},
                     {"hbm_gib", g.hbm_bytes / (std::int64_t{1} << 30)},
                     {"link_gb_per_s", round_to(g.link_bytes_per_s / giga, 0.1)},
                     {"link_domain", g.link_domain},
                     {"nic_gb_per_s", round_to(g.nic_bytes_per_s / giga, 0.1)}}});
  }
  return rows;
}

std::vector<Row> fabrics() {
  std::vector<Row> rows;
  for (const std::string_view name : fabric_names()) {
    const FabricSpec f = fabric_preset(name);
    rows.push_back({std::string(name),
                    {{"nic_gb_per_s", round_to(f.nic_bytes_per_s / 1e9, 0.1)},
                     {"latency_us", round_to(f.latency_s * 1e6, 0.01)},
                     {"link_domain", f.link_domain}}});
  }
  return rows;
}

std::vector<Row> schedule_rows() {
  std::vector<Row> rows;
  for (const ScheduleName& s : schedule_names()) {
    const char* kind = s.schedule_class == TransportClass::LowLatency ? "low latency"
                       : s.schedule_class == TransportClass::Both     ? "either"
                                                                      : "high throughput";
    rows.push_back(
        {std::string(s.name),
         {{"class", kind}, {"default_transport", transport_info(s.default_transport).name}, {"what", s.what}}});
  }
  return rows;
}

std::vector<Row> transport_rows() {
  std::vector<Row> rows;
  for (const TransportInfo& t : transports()) {
    const char* kind = t.transport_class == TransportClass::LowLatency ? "low latency"
                       : t.transport_class == TransportClass::Both     ? "either"
                                                                       : "high throughput";
    const char* lane = t.transport_class == TransportClass::HighThroughput ? "comm"
                       : t.transport_class == TransportClass::Both         ? "either"
                                                                           : "compute";
    rows.push_back({std::string(t.name),
                    {{"class", kind},
                     {"lane", lane},
                     {"blocks_host", t.host_blocks},
                     {"graph", t.capturable},
                     {"padded", t.padded},
                     {"dedup", t.dedup_per_rank},
                     {"unreceived", t.handle_slots},
                     {"replay", !t.simulated_only},
                     {"sms", t.sms},
                     {"what", t.what}}});
  }
  return rows;
}

std::string cell(const Json& value) {
  if (value.is_string()) return value.as_string();
  if (value.is_bool()) return value.as_bool() ? "yes" : "no";
  if (value.is_double()) return fmt::format("{:g}", value.as_number());
  return compact_json(value);
}

void print_table(const std::vector<Row>& rows) {
  std::vector<std::size_t> widths{4};
  for (const Row& row : rows) {
    widths.resize(row.columns.size() + 1, 0);
    widths[0] = std::max(widths[0], row.name.size());
    for (std::size_t i = 0; i < row.columns.size(); ++i)
      widths[i + 1] = std::max({widths[i + 1], row.columns[i].first.size(), cell(row.columns[i].second).size()});
  }
  std::string head = fmt::format("{:<{}}", "name", widths[0]);
  for (std::size_t i = 0; i < rows.front().columns.size(); ++i)
    head += fmt::format("  {:<{}}", rows.front().columns[i].first, widths[i + 1]);
  fmt::print("{}\n", head.substr(0, head.find_last_not_of(' ') + 1));
  for (const Row& row : rows) {
    std::string line = fmt::format("{:<{}}", row.name, widths[0]);
    for (std::size_t i = 0; i < row.columns.size(); ++i) {
      const bool number = row.columns[i].second.is_number();
      const std::string text = cell(row.columns[i].second);
      line += number ? fmt::format("  {:>{}}", text, widths[i + 1]) : fmt::format("  {:<{}}", text, widths[i + 1]);
    }
    fmt::print("{}\n", line.substr(0, line.find_last_not_of(' ') + 1));
  }
}

}  // namespace

int run_list(const std::string& what, bool json) {
  const std::vector<Row> rows = what == "models"      ? models()
                                : what == "gpus"      ? gpus()
                                : what == "fabrics"   ? fabrics()
                                : what == "schedules" ? schedule_rows()
                                                      : transport_rows();
  if (!json) {
    print_table(rows);
    return 0;
  }
  Json out = Json::object();
  for (const Row& row : rows) {
    Json entry = Json::object();
    for (const auto& [key, value] : row.columns) entry.set(key, value);
    out.set(row.name, std::move(entry));
  }
  fmt::print("{}", pretty_json(out));
  return 0;
}

}  // namespace dbo
