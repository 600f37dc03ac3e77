// GPUs and fabrics from objects with the keys of the preset files.
#include "sim/model/presets.h"

namespace dbo {
namespace {

/// A rate or time given in `unit` of its SI prefix. `low` is above 0 for what is divided by.
void read_scaled(ObjectReader& reader, std::string_view key, double unit, double& field, double low = 0) {
  if (const auto value = reader.find(key)) field = value->number(low, 1e9) * unit;
}

void read_bytes(ObjectReader& reader, std::string_view key, double unit, std::int64_t& field) {
  if (const auto value = reader.find(key)) field = static_cast<std::int64_t>(value->number(0, 1e9) * unit);
}

void read_count(ObjectReader& reader, std::string_view key, int& field, std::int64_t low) {
  if (const auto value = reader.find(key)) field = static_cast<int>(value->integer(low, 1 << 20));
}

void read_source(ObjectReader& reader, std::string& source) {
  if (const auto value = reader.find("source")) source = value->string();
  if (const auto value = reader.find("note")) value->string();
}

constexpr double kTera = 1e12, kGiga = 1e9, kMebi = 1024.0 * 1024.0, kGibi = 1024.0 * kMebi, kMicro = 1e-6;
constexpr double kSmallest = 1e-3;

}  // namespace

GpuSpec gpu_from_object(const JsonRef& ref) {
  if (ref.value().is_string()) return gpu_preset(gpu_names()[ref.one_of(gpu_names(), "gpu")]);
  ObjectReader reader(ref, "the name of a gpu or an object");
  GpuSpec gpu;
  const auto preset = reader.find("preset");
  if (preset) {
    gpu = gpu_preset(gpu_names()[preset->one_of(gpu_names(), "gpu")]);
  } else {
    for (const std::string_view key : {"sms", "bf16_tflops", "hbm_gb_per_s", "hbm_gib", "link_gb_per_s"})
      reader.require(key);
  }
  if (const auto value = reader.find("name")) gpu.name = value->string();
  if (const auto value = reader.find("vendor")) gpu.amd = value->one_of({"nvidia", "amd"}, "vendor") == 1;
  if (const auto value = reader.find("architecture")) value->string();
  read_count(reader, "sms", gpu.sms, 1);
  read_scaled(reader, "bf16_tflops", kTera, gpu.bf16_flops, kSmallest);
  read_scaled(reader, "fp8_tflops", kTera, gpu.fp8_flops);
  read_scaled(reader, "fp4_tflops", kTera, gpu.fp4_flops);
  read_scaled(reader, "hbm_gb_per_s", kGiga, gpu.hbm_bytes_per_s, kSmallest);
  read_bytes(reader, "hbm_gib", kGibi, gpu.hbm_bytes);
  read_bytes(reader, "l2_mib", kMebi, gpu.l2_bytes);
  read_scaled(reader, "link_gb_per_s", kGiga, gpu.link_bytes_per_s, kSmallest);
  if (!preset || reader.has("link_gb_per_s")) gpu.peer_link_bytes_per_s = gpu.link_bytes_per_s;
  read_scaled(reader, "peer_link_gb_per_s", kGiga, gpu.peer_link_bytes_per_s, kSmallest);
  read_count(reader, "link_domain", gpu.link_domain, 1);
  read_scaled(reader, "nic_gb_per_s", kGiga, gpu.nic_bytes_per_s);
  read_count(reader, "green_context_granularity", gpu.green_context_granularity, 1);
  read_count(reader, "green_context_minimum", gpu.green_context_minimum, 1);
  read_source(reader, gpu.source);
  reader.done();
  return gpu;
}

FabricSpec fabric_from_object(const JsonRef& ref) {
  if (ref.value().is_string()) return fabric_preset(fabric_names()[ref.one_of(fabric_names(), "fabric")]);
  ObjectReader reader(ref, "the name of a fabric or an object");
  FabricSpec fabric;
  if (const auto preset = reader.find("preset"))
    fabric = fabric_preset(fabric_names()[preset->one_of(fabric_names(), "fabric")]);
  if (const auto value = reader.find("name")) fabric.name = value->string();
  read_scaled(reader, "nic_gb_per_s", kGiga, fabric.nic_bytes_per_s);
  read_scaled(reader, "latency_us", kMicro, fabric.latency_s);
  read_count(reader, "link_domain", fabric.link_domain, 1);
  read_source(reader, fabric.source);
  reader.done();
  return fabric;
}

}  // namespace dbo
