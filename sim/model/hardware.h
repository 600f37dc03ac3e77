// GPUs and the fabric between them, as presets describe them.
#pragma once

#include <cstdint>
#include <string>

namespace dbo {

/// One GPU. Rates are what the vendor states, one direction, dense; 0 where the GPU has no such unit.
struct GpuSpec {
  std::string name;  ///< preset key
  bool amd = false;
  int sms = 0;
  double bf16_flops = 0, fp8_flops = 0, fp4_flops = 0;  ///< per second
  double hbm_bytes_per_s = 0;
  std::int64_t hbm_bytes = 0;
  std::int64_t l2_bytes = 0;
  double link_bytes_per_s = 0;       ///< scale-up (NVLink, xGMI), one direction, all links
  double peer_link_bytes_per_s = 0;  ///< to one peer; equal to link_bytes_per_s behind a switch
  int link_domain = 8;               ///< GPUs that reach each other over it
  double nic_bytes_per_s = 0;
  int green_context_granularity = 8;  ///< SMs a partition is a multiple of
  int green_context_minimum = 8;
  std::string source;

  friend bool operator==(const GpuSpec&, const GpuSpec&) = default;
};

/// What joins the nodes.
struct FabricSpec {
  std::string name;
  double nic_bytes_per_s = 0;  ///< per GPU, one direction; 0: the GPU preset's
  double latency_s = 0;        ///< one way, between nodes
  int link_domain = 0;         ///< GPUs that share scale-up links; 0: the GPU preset's
  std::string source;

  friend bool operator==(const FabricSpec&, const FabricSpec&) = default;
};

}  // namespace dbo
