// Clocks and power of a GPU, read through NVML where there is one. Nothing is ever set.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace dbo::validate {

struct GpuState {
  int sm_clock_mhz = 0, memory_clock_mhz = 0;
  double power_w = 0;
  int temperature_c = 0;
  std::uint64_t throttle_reasons = 0;  ///< NVML's bits: 0x4 power cap, 0x8 hardware, 0x20, 0x40 thermal
};

/// NVML, loaded when it is first asked for; without the library every question has no answer.
class Nvml {
 public:
  Nvml();
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  bool works() const { return initialised_; }
  /// `bus_id` as CUDA names it ("0000:1B:00.0").
  std::optional<GpuState> state(const std::string& bus_id) const;
  std::string driver() const;  ///< "580.159.04", or empty

 private:
  void* library_ = nullptr;
  bool initialised_ = false;
};

}  // namespace dbo::validate
