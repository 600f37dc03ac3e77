#include "validate/cuda/nvml.h"

#include <dlfcn.h>

#include <array>

namespace dbo::validate {
namespace {

// The few entries of NVML's stable C interface that are used; its header need not be there.
using Device = void*;
constexpr int kSuccess = 0;
constexpr int kSmClock = 1, kMemoryClock = 2, kGpuTemperature = 0;

template <typename Function>
Function find(void* library, const char* name) {
  return library == nullptr ? nullptr : reinterpret_cast<Function>(::dlsym(library, name));
}

}  // namespace

Nvml::Nvml() {
  library_ = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  const auto init = find<int (*)()>(library_, "nvmlInit_v2");
  initialised_ = init != nullptr && init() == kSuccess;
}

Nvml::~Nvml() {
  if (const auto shutdown = find<int (*)()>(library_, "nvmlShutdown"); initialised_ && shutdown != nullptr)
    (void)shutdown();
  if (library_ != nullptr) (void)::dlclose(library_);
}

std::optional<GpuState> Nvml::state(const std::string& bus_id) const {
  if (!initialised_) return std::nullopt;
  const auto handle = find<int (*)(const char*, Device*)>(library_, "nvmlDeviceGetHandleByPciBusId_v2");
  Device device = nullptr;
  if (handle == nullptr || handle(bus_id.c_str(), &device) != kSuccess) return std::nullopt;
  GpuState state;
  unsigned value = 0;
  const auto clock = find<int (*)(Device, int, unsigned*)>(library_, "nvmlDeviceGetClockInfo");
  if (clock != nullptr && clock(device, kSmClock, &value) == kSuccess) state.sm_clock_mhz = static_cast<int>(value);
  if (clock != nullptr && clock(device, kMemoryClock, &value) == kSuccess)
    state.memory_clock_mhz = static_cast<int>(value);
  const auto power = find<int (*)(Device, unsigned*)>(library_, "nvmlDeviceGetPowerUsage");
  if (power != nullptr && power(device, &value) == kSuccess) state.power_w = value / 1000.0;
  const auto temperature = find<int (*)(Device, int, unsigned*)>(library_, "nvmlDeviceGetTemperature");
  if (temperature != nullptr && temperature(device, kGpuTemperature, &value) == kSuccess)
    state.temperature_c = static_cast<int>(value);
  unsigned long long reasons = 0;
  const auto throttle =
      find<int (*)(Device, unsigned long long*)>(library_, "nvmlDeviceGetCurrentClocksThrottleReasons");
  if (throttle != nullptr && throttle(device, &reasons) == kSuccess) state.throttle_reasons = reasons;
  return state;
}

std::string Nvml::driver() const {
  const auto version = find<int (*)(char*, unsigned)>(library_, "nvmlSystemGetDriverVersion");
  std::array<char, 96> text{};
  if (!initialised_ || version == nullptr || version(text.data(), static_cast<unsigned>(text.size())) != kSuccess)
    return {};
  return text.data();
}

}  // namespace dbo::validate
