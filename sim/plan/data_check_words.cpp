#include "sim/plan/data_check_words.h"

#include <algorithm>

namespace dbo {

std::string DataCheckWords::slot_name(BufferId buffer, int slot) const {
  return plan_.buffers[buffer].name + "[" + std::to_string(slot) + "]";
}

std::string DataCheckWords::event_name(std::uint16_t thread, EventId event) const {
  std::string text = "event \"" + plan_.events[event] + "\"";
  if (rank_class_.threads.size() > 1)
    text += " of ubatch " + std::to_string(plan_.threads[static_cast<std::size_t>(rank_class_.threads[thread])].ubatch);
  return text;
}

std::string DataCheckWords::names(const std::vector<std::uint32_t>& ops) const {
  std::string text;
  for (const std::uint32_t op : ops) text += (text.empty() ? "" : " and ") + name(op);
  return text;
}

std::uint32_t DataCheckWords::covered(const LinearRecord& record) const {
  const std::vector<QueueItem>& queue = linear_.queues[record.lane];
  for (std::uint32_t p = record.position; p-- > 0;)
    if (queue[p].kind == QueueItem::Kind::Op) return queue[p].index;
  return kNone;
}

std::string DataCheckWords::race(Conflict type, std::uint32_t before, std::uint32_t op, BufferId buffer,
                                 int slot) const {
  std::string text = name(op) + " (" + lane_of(op) + ") ";
  const std::string other = name(before) + " (" + lane_of(before) + ")";
  switch (type) {
    case Conflict::ReadAfterWrite:
      text += "reads " + slot_name(buffer, slot) + " without waiting for " + other + ", which writes it";
      break;
    case Conflict::WriteAfterWrite:
      text += "writes " + slot_name(buffer, slot) + " without waiting for " + other + ", which writes it too";
      break;
    case Conflict::WriteAfterRead:
      text += "writes " + slot_name(buffer, slot) + " without waiting for " + other + ", which still reads it";
      break;
  }
  return text + ": " + why_unordered(before, op);
}

/// Looks for the wait that should have ordered them: one that binds to the wrong record, or the last one there was.
std::string DataCheckWords::why_unordered(std::uint32_t before, std::uint32_t op) const {
  const LinearOp& a = linear_.ops[before];
  const LinearOp& b = linear_.ops[op];
  const std::string lane = plan_.lanes[b.lane], other = plan_.lanes[a.lane];
  std::string last;
  for (const LinearWait& wait : linear_.waits) {
    if (wait.host > b.host) break;
    if (wait.lane != b.lane) continue;
    const std::string event = event_name(wait.thread, wait.event);
    if (wait.record == kNone) {
      if (wait.host > a.host)
        last = "the wait of " + lane + " on " + event + " is no wait, as nothing has recorded it before";
      continue;
    }
    const LinearRecord& bound = linear_.records[wait.record];
    for (std::uint32_t r = wait.record; wait.host > a.host && r-- > 0;) {
      const LinearRecord& earlier = linear_.records[r];
      if (earlier.host < a.host) break;
      if (earlier.thread != wait.thread || earlier.event != wait.event || earlier.lane != a.lane) continue;
      const std::uint32_t again = covered(bound);
      return event + " is recorded behind it, but recorded again on " + plan_.lanes[bound.lane] +
             (again == kNone ? "" : " behind " + name(again)) + " before " + lane + " waits for it";
    }
    if (bound.lane != a.lane) continue;
    const std::uint32_t up_to = covered(bound);
    last = "the last wait of " + lane + " for " + other + ", on " + event + ", covers " +
           (up_to == kNone ? "no op" : "it up to " + name(up_to));
  }
  return last.empty() ? lane + " never waits for " + other + " before it" : last;
}

std::string DataCheckWords::overwritten(std::uint32_t op, BufferId buffer, int slot, std::uint32_t writer) const {
  const Buffer& def = plan_.buffers[buffer];
  return name(op) + " reads " + slot_name(buffer, slot) + " after " + name(writer) + " has overwritten it (" +
         def.name + " has " + std::to_string(def.slots) + (def.slots == 1 ? " slot" : " slots") + ", by " +
         (def.by == SlotBy::Ubatch ? "ubatch" : "call") + ")";
}

std::string DataCheckWords::late(std::uint32_t op, BufferId buffer, std::int32_t layer, std::uint32_t stale) const {
  LinearOp missing = linear_.ops[op];
  missing.op = producer(buffer, missing, layer);
  missing.layer = layer;
  const bool launched = std::any_of(linear_.ops.begin(), linear_.ops.end(), [&](const LinearOp& other) {
    return other.op == missing.op && other.ubatch == missing.ubatch && other.layer == layer;
  });
  std::string text = name(op) + " reads " + plan_.buffers[buffer].name + ", which " + describe(plan_, missing);
  text += launched ? " writes only later" : " never writes, as it is not launched";
  if (stale == kNone) return text + ": it finds nothing there";
  return text + ": it finds what " + name(stale) + " left";
}

OpId DataCheckWords::producer(BufferId buffer, const LinearOp& reader, std::int32_t layer) const {
  const bool copy = plan_.ops[reader.op].kind == OpKind::CCopy;
  const auto writes = [&](OpId op) {
    const OpDef& def = plan_.ops[op];
    const bool other_half = copy && is_dispatch(def.kind);
    return op != reader.op && !other_half &&
           std::find(def.writes.begin(), def.writes.end(), buffer) != def.writes.end();
  };
  for (const LinearOp& op : linear_.ops)
    if (op.ubatch == reader.ubatch && op.layer == layer && writes(op.op)) return op.op;
  for (OpId op = 0; op < plan_.ops.size(); ++op)
    if (plan_.ops[op].kind != OpKind::EMB && writes(op)) return op;
  return reader.op;
}

std::string DataCheckWords::overflow(std::uint32_t send, const std::vector<std::uint32_t>& unreceived,
                                     int slots) const {
  return name(send) + " is launched while " + names(unreceived) + " are not received: that makes " +
         std::to_string(unreceived.size() + 1) + " calls for " + std::to_string(slots) +
         (slots == 1 ? " buffer" : " buffers") + ", and overwrites the first";
}

std::string DataCheckWords::crowded(std::uint32_t send, const std::vector<std::uint32_t>& unreceived, int slots) const {
  return name(send) + " is launched while " + names(unreceived) + (unreceived.size() == 1 ? " is" : " are") +
         " not received: a rank that is ahead may fill one of the " + std::to_string(slots) +
         " buffers before this rank has read it";
}

std::string DataCheckWords::late_event(std::uint32_t op, const LinearWait& wait, std::uint32_t needed,
                                       std::uint32_t extra) const {
  return name(op) + " waits for " + name(extra) + " although it needs only " + name(needed) + ": " +
         event_name(wait.thread, wait.event) + " is recorded too late, so the two do not overlap";
}

}  // namespace dbo
