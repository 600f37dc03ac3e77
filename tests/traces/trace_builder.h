// Small traces for tests, written as one line an op.
#pragma once

#include <algorithm>
#include <string>

#include "traces/trace.h"

namespace dbo::testing {

class TraceBuilder {
 public:
  TraceBuilder() { trace_.lanes = {"compute", "comm", "wire"}; }

  /// Adds an op; returns its index. The lane is that of the kind unless given.
  std::uint32_t op(OpKind kind, int ubatch, int layer, std::int64_t start, std::int64_t end, int rank = 0,
                   int lane = -1) {
    TraceOp op;
    op.rank = rank;
    op.layer = layer;
    op.ubatch = static_cast<std::int16_t>(ubatch);
    op.kind = kind;
    op.lane = static_cast<std::uint8_t>(lane >= 0 ? lane : is_wire(kind) ? 2 : is_collective(kind) ? 1 : 0);
    op.name = name(std::string(op_name(kind)));
    op.start = at(start);
    op.end = at(end);
    op.tokens = 64;
    trace_.ops.push_back(op);
    return static_cast<std::uint32_t>(trace_.ops.size() - 1);
  }
  std::uint32_t foreign(const std::string& text, std::int64_t start, std::int64_t end, int rank = 0, int lane = 0) {
    const std::uint32_t index = op(OpKind::Other, 0, -1, start, end, rank, lane);
    trace_.ops[index].name = name(text);
    return index;
  }
  void flow(std::uint32_t from, std::uint32_t to, TraceFlow::Kind kind = TraceFlow::Kind::Event) {
    trace_.flows.push_back({kind, from, to});
  }
  TraceOp& at_index(std::uint32_t index) { return trace_.ops[index]; }
  Trace& trace() { return trace_; }

 private:
  std::uint32_t name(const std::string& text) {
    const auto at = std::find(trace_.names.begin(), trace_.names.end(), text);
    if (at != trace_.names.end()) return static_cast<std::uint32_t>(at - trace_.names.begin());
    trace_.names.push_back(text);
    return static_cast<std::uint32_t>(trace_.names.size() - 1);
  }

  Trace trace_;
};

}  // namespace dbo::testing
