// The `shape` member of a plan: every dimension, with the key names of the model presets.
#pragma once

#include "sim/base/json.h"
#include "sim/base/json_reader.h"
#include "sim/base/model_shape.h"

namespace dbo {

Json shape_to_json(const ModelShape& shape);
ModelShape shape_from_json(const JsonRef& ref);

}  // namespace dbo
