#include "traces/transfers.h"

#include <algorithm>

namespace dbo {

Transfers::Transfers(const Trace& trace, std::int32_t rank) {
  for (const TraceOp& op : trace.ops) {
    if (op.rank != rank || !is_comm(op.kind) || op.kind == OpKind::CCopy) continue;
    Parts& parts = parts_[{is_dispatch(op.kind), op.layer, op.ubatch}];
    const std::int64_t start = op.start.time_since_epoch().count(), end = op.end.time_since_epoch().count();
    parts.kernel = parts.kernel || is_collective(op.kind);
    if (is_send(op.kind)) {
      parts.sent = std::max(parts.sent.value_or(end), end);
    } else if (is_recv(op.kind)) {
      const std::int64_t arrived = std::min(end, start + op.waited.count());
      parts.arrived = std::max(parts.arrived.value_or(arrived), arrived);
      parts.waited = std::max(parts.waited, arrived - start);
    } else if (parts.whole) {
      parts.whole = Interval{std::min(parts.whole->begin, start), std::max(parts.whole->end, end)};
    } else {
      parts.whole = Interval{start, end};
    }
  }
}

std::optional<Interval> Transfers::interval(const Parts& parts) {
  if (parts.whole) return parts.whole;
  if (!parts.sent || !parts.arrived || *parts.arrived <= *parts.sent) return std::nullopt;
  return Interval{*parts.sent, *parts.arrived};
}

const Transfers::Parts* Transfers::parts(bool dispatch, std::int32_t layer, int ubatch) const {
  const auto at = parts_.find({dispatch, layer, ubatch});
  return at == parts_.end() ? nullptr : &at->second;
}

std::optional<Interval> Transfers::find(bool dispatch, std::int32_t layer, int ubatch) const {
  const Parts* found = parts(dispatch, layer, ubatch);
  return found == nullptr ? std::nullopt : interval(*found);
}

}  // namespace dbo
