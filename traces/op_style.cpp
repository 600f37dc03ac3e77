#include "traces/op_style.h"

namespace dbo {

std::string_view op_colour(OpKind kind, int ubatch) {
  const bool odd = ubatch % 2 != 0;
  switch (kind) {
    case OpKind::A0:
      return odd ? "#6fa8dc" : "#bcd7f0";
    case OpKind::A1:
      return odd ? "#4f8fd0" : "#94bfe8";
    case OpKind::MLP:
      return odd ? "#6bbf6b" : "#b5e0b0";
    case OpKind::S:
      return odd ? "#45b5a9" : "#a3ddd6";
    case OpKind::FFN:
      return odd ? "#96c23c" : "#d2e6a3";
    case OpKind::D:
    case OpKind::DSend:
    case OpKind::DRecv:
      return odd ? "#f08c3a" : "#fbc493";
    case OpKind::DWire:
      return odd ? "#f5ab6b" : "#fddabb";
    case OpKind::C:
    case OpKind::CSend:
    case OpKind::CRecv:
    case OpKind::CCopy:
      return odd ? "#e0679a" : "#f4b2cd";
    case OpKind::CWire:
      return odd ? "#ec95b8" : "#f9d2e1";
    case OpKind::EMB:
    case OpKind::HEAD:
      return odd ? "#a58bd0" : "#d3c6ea";
    case OpKind::Other:
      return odd ? "#b4bac1" : "#d5d9de";
  }
  return "#d5d9de";
}

}  // namespace dbo
