#include "validate/cuda/clock_meter.h"

#include <algorithm>
#include <vector>

#include "runtime/cuda/check.h"

namespace dbo::validate {
namespace {

int count_sms() {
  int device = 0, sms = 0;
  DBO_CUDA_CHECK(cudaGetDevice(&device));
  DBO_CUDA_CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device));
  return sms;
}

}  // namespace

ClockMeter::ClockMeter()
    : sms_(count_sms()),
      stream_(runtime::Stream::create(false)),
      memory_(2 * static_cast<std::size_t>(sms_) * sizeof(kernels::SmClock)) {}

void ClockMeter::read(kernels::SmClock* out) {
  const std::size_t bytes = static_cast<std::size_t>(sms_) * sizeof(kernels::SmClock);
  DBO_CUDA_CHECK(cudaMemsetAsync(out, 0, bytes, stream_.get()));
  DBO_CUDA_CHECK(kernels::launch_sm_clock(out, sms_, stream_.get()));
  DBO_CUDA_CHECK(cudaStreamSynchronize(stream_.get()));
}

void ClockMeter::begin() {
  read(memory_.as<kernels::SmClock>());
}

double ClockMeter::end() {
  const auto sms = static_cast<std::size_t>(sms_);
  read(memory_.as<kernels::SmClock>() + sms);
  std::vector<kernels::SmClock> clocks(2 * sms);
  DBO_CUDA_CHECK(
      cudaMemcpy(clocks.data(), memory_.get(), clocks.size() * sizeof(kernels::SmClock), cudaMemcpyDeviceToHost));
  std::vector<double> mhz;
  for (std::size_t sm = 0; sm < sms; ++sm) {
    const kernels::SmClock &from = clocks[sm], &to = clocks[sms + sm];
    if (from.ns == 0 || to.ns <= from.ns || to.cycles <= from.cycles) continue;
    mhz.push_back(1000 * static_cast<double>(to.cycles - from.cycles) / static_cast<double>(to.ns - from.ns));
  }
  if (mhz.empty()) return 0;
  std::nth_element(mhz.begin(), mhz.begin() + static_cast<std::ptrdiff_t>(mhz.size() / 2), mhz.end());
  return mhz[mhz.size() / 2];
}

}  // namespace dbo::validate
