// The SM clock a piece of work ran at, read from the SMs' own cycle counters: what power limits do to it shows, where a
// driver's figure is of one moment.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/stand_in/sm_clock.h"
#include "runtime/cuda/handles.h"

namespace dbo::validate {

/// Of one GPU. Work is done between `begin` and `end`; each waits for an idle GPU and takes some 20 us.
class ClockMeter {
 public:
  /// On the current GPU.
  ClockMeter();

  void begin();
  /// Mean clock since `begin`, MHz: the median over the SMs; 0 when no SM was seen twice.
  double end();

 private:
  void read(kernels::SmClock* out);

  int sms_ = 0;
  runtime::Stream stream_;
  runtime::DeviceBuffer memory_;  ///< [2][sms]
};

}  // namespace dbo::validate
