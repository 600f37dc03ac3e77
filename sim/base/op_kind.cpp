#include "sim/base/op_kind.h"

#include <array>

namespace dbo {
namespace {

constexpr std::array<std::string_view, kOpKinds> kNames = {"A0",     "A1",  "D",   "D.send", "D.wire", "D.recv",
                                                           "MLP",    "S",   "C",   "C.send", "C.wire", "C.recv",
                                                           "C.copy", "FFN", "EMB", "HEAD",   "OTHER"};

}  // namespace

std::string_view op_name(OpKind kind) {
  return kNames[static_cast<std::size_t>(kind)];
}

std::optional<OpKind> find_op_kind(std::string_view name) {
  for (std::size_t i = 0; i < kNames.size(); ++i)
    if (kNames[i] == name) return static_cast<OpKind>(i);
  return std::nullopt;
}

}  // namespace dbo
