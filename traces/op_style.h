// How ops look in pictures and reports: one hue a kind, one shade a ubatch.
#pragma once

#include <string_view>

#include "sim/base/op_kind.h"

namespace dbo {

/// "#rrggbb". Light enough for dark text on it. Even and odd ubatches differ in shade.
std::string_view op_colour(OpKind kind, int ubatch);

}  // namespace dbo
