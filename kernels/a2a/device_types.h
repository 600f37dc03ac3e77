// Types of the machine operations in device.cuh that do not depend on the machine.
#pragma once

#include <cstdint>

#include "kernels/a2a/call.h"

namespace dbo::kernels::device {

/// 16 bytes: what one thread loads or stores at a time.
struct alignas(16) Vec16 {
  std::uint32_t x, y, z, w;
};

}  // namespace dbo::kernels::device
