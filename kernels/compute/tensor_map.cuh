// The driver's own type for what tensor_map.h describes.
#pragma once

#include <cuda.h>

#include <cstring>

#include "kernels/compute/tensor_map.h"

namespace dbo::kernels {

static_assert(sizeof(TensorMap) == sizeof(CUtensorMap) && alignof(TensorMap) >= 64);

inline CUtensorMap native(const TensorMap& map) {
  CUtensorMap m;
  std::memcpy(&m, &map, sizeof m);
  return m;
}

}  // namespace dbo::kernels
