// Who gets which SMs while ubatches overlap.
#pragma once

#include "sim/batch/decide.h"
#include "sim/batch/settings.h"

namespace dbo {

/// The step's SMs. An un-split step sets none aside, and neither do low latency (its kernels run on what they find) and
/// DeepEP high throughput on AMD. Kernels created with fewer SMs than are set aside leave the rest idle; a green
/// context takes SMs in the GPU's granularity, which can leave some idle too.
SmShare share_sms(const DecideSettings& settings, bool split);

}  // namespace dbo
