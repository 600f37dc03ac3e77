// The kinds of op every part of the project speaks of.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace dbo {

/// One unit of work on one lane. Low-latency dispatch and combine are Send, Wire and Recv; high-throughput ones are a
/// single comm kernel (D, C), the combine followed by its copy. Other is an op of a foreign trace, which has a name.
enum class OpKind : std::uint8_t {
  A0,
  A1,
  D,
  DSend,
  DWire,
  DRecv,
  MLP,
  S,
  C,
  CSend,
  CWire,
  CRecv,
  CCopy,
  FFN,
  EMB,
  HEAD,
  Other
};

inline constexpr int kOpKinds = 17;

std::string_view op_name(OpKind kind);                      ///< "A0", "D.send", ..., "OTHER"
std::optional<OpKind> find_op_kind(std::string_view name);  ///< the inverse

/// Work that hides communication: A0 A1 MLP S FFN EMB HEAD.
constexpr bool is_compute(OpKind kind) {
  switch (kind) {
    case OpKind::A0:
    case OpKind::A1:
    case OpKind::MLP:
    case OpKind::S:
    case OpKind::FFN:
    case OpKind::EMB:
    case OpKind::HEAD:
      return true;
    case OpKind::D:
    case OpKind::DSend:
    case OpKind::DWire:
    case OpKind::DRecv:
    case OpKind::C:
    case OpKind::CSend:
    case OpKind::CWire:
    case OpKind::CRecv:
    case OpKind::CCopy:
    case OpKind::Other:
      return false;
  }
  return false;
}

constexpr bool is_send(OpKind kind) {
  return kind == OpKind::DSend || kind == OpKind::CSend;
}
constexpr bool is_recv(OpKind kind) {
  return kind == OpKind::DRecv || kind == OpKind::CRecv;
}
constexpr bool is_wire(OpKind kind) {
  return kind == OpKind::DWire || kind == OpKind::CWire;
}
/// A comm op that is a kernel of its own on every rank at once (high throughput).
constexpr bool is_collective(OpKind kind) {
  return kind == OpKind::D || kind == OpKind::C;
}
/// Any part of dispatch or combine.
constexpr bool is_comm(OpKind kind) {
  return !is_compute(kind) && kind != OpKind::Other;
}
/// Any part of dispatch.
constexpr bool is_dispatch(OpKind kind) {
  return kind == OpKind::D || kind == OpKind::DSend || kind == OpKind::DWire || kind == OpKind::DRecv;
}

}  // namespace dbo
