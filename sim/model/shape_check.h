// What must hold between the dimensions of a model, wherever they were read.
#pragma once

#include "sim/base/json_reader.h"
#include "sim/base/model_shape.h"

namespace dbo {

/// Throws InputError at `ref`, or at its member of the same name, when the shape cannot be.
void check_shape(const JsonRef& ref, const ModelShape& shape);

}  // namespace dbo
