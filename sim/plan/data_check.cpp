#include "sim/plan/data_check.h"

#include <algorithm>
#include <utility>

#include "sim/plan/data_check_words.h"
#include "sim/plan/slot_map.h"

namespace dbo {
namespace {

constexpr std::int32_t kNever = INT32_MIN;
constexpr Findings::Key kOverflow = {0, 0, 0, 3};  ///< a call's buffer is overwritten before its receive

/// In which layers each ubatch writes each buffer: what a reader may expect to find in its slot.
class WrittenLayers {
 public:
  WrittenLayers(const Plan& plan, const Linear& linear) : buffers_(plan.buffers.size()) {
    std::int32_t last = -1;
    std::size_t ubatches = 0;
    for (const LinearOp& op : linear.ops) {
      last = std::max(last, op.layer);
      ubatches = std::max<std::size_t>(ubatches, op.ubatch + 1u);
    }
    rows_ = static_cast<std::size_t>(last + 2);  // layer -1, outside the layers, comes first
    latest_.assign(ubatches * buffers_ * rows_, kNever);
    for (const LinearOp& op : linear.ops)
      for (const BufferId buffer : plan.ops[op.op].writes) at(buffer, op.ubatch, op.layer) = op.layer;
    for (std::size_t i = 0; i < latest_.size(); ++i)
      if (i % rows_ != 0) latest_[i] = std::max(latest_[i], latest_[i - 1]);
  }

  std::int32_t last_layer() const { return static_cast<std::int32_t>(rows_) - 2; }
  /// The latest layer up to `layer` in which the ubatch writes the buffer; kNever when there is none.
  std::int32_t latest(BufferId buffer, int ubatch, std::int32_t layer) {
    return layer < -1 ? kNever : at(buffer, ubatch, layer);
  }

 private:
  std::int32_t& at(BufferId buffer, int ubatch, std::int32_t layer) {
    return latest_[(static_cast<std::size_t>(ubatch) * buffers_ + buffer) * rows_ +
                   static_cast<std::size_t>(layer + 1)];
  }

  std::size_t buffers_, rows_ = 1;
  std::vector<std::int32_t> latest_;
};

/// Follows the host order once. A lane's clock says how many items of each lane's queue are over before what the lane
/// runs next; an access is safe when the clock has passed every access it conflicts with.
class DataCheck {
 public:
  DataCheck(const Plan& plan, const RankClass& rank_class, const Linear& linear, Findings& findings)
      : plan_(plan),
        linear_(linear),
        findings_(findings),
        words_(plan, rank_class, linear),
        slots_(plan, linear),
        written_(plan, linear),
        lanes_(plan.lanes.size()),
        clocks_(lanes_ * lanes_, 0),
        host_clock_(lanes_, 0),
        need_(lanes_, 0),
        record_clocks_(linear.records.size() * lanes_),
        pending_(lanes_) {
    for (const Buffer& buffer : plan.buffers) {
      first_slot_.push_back(last_write_.size());
      last_write_.resize(last_write_.size() + static_cast<std::size_t>(buffer.slots), kNone);
    }
    last_read_.assign(last_write_.size() * lanes_, kNone);
    received_.assign(plan.buffers.size(), false);
    fill_.assign(plan.buffers.size(), Filled{});
    for (const OpDef& def : plan.ops) {
      for (const BufferId buffer : def.writes) {
        const bool experts = is_comm(def.kind) || def.kind == OpKind::S || def.kind == OpKind::MLP;
        fill_[buffer].moe_layers |= def.kind != OpKind::EMB && def.kind != OpKind::FFN;
        fill_[buffer].dense_layers |= def.kind != OpKind::EMB && !experts;
        if (is_recv(def.kind)) received_[buffer] = true;
      }
    }
    for (const HostStep& step : linear.host)
      if (step.verb == Verb::HostWait && !step.notify) {
        begin_clocks_.resize(linear.ops.size() * lanes_);
        break;
      }
  }

  void run() {
    for (const HostStep& step : linear_.host) {
      switch (step.verb) {
        case Verb::Launch:
          launch(step.index);
          break;
        case Verb::Record:
          record(step.index);
          break;
        case Verb::Wait:
          wait(step.index);
          break;
        case Verb::HostWait:
          if (!step.notify) host_wait(step.index);
          break;
        case Verb::Yield:
        case Verb::Hook:
        case Verb::RunHook:
        case Verb::Exit:
        case Verb::Repeat:
        case Verb::Block:
          break;
      }
    }
    find_unreceived();
  }

 private:
  /// Which layers write a buffer, by the ops that do.
  struct Filled {
    bool moe_layers = false, dense_layers = false;
    bool outside() const { return !moe_layers && !dense_layers; }
  };

  struct PendingWait {
    std::uint32_t wait = 0;
    std::uint32_t known = 0;  ///< how far the lane knew the recorded one before the wait
  };

  std::uint32_t* clock(std::size_t lane) { return &clocks_[lane * lanes_]; }
  void join(std::uint32_t* clock, const std::uint32_t* other) const {
    for (std::size_t lane = 0; lane < lanes_; ++lane) clock[lane] = std::max(clock[lane], other[lane]);
  }
  const LinearOp& op(std::uint32_t i) const { return linear_.ops[i]; }
  OpKind kind(std::uint32_t i) const { return plan_.ops[op(i).op].kind; }

  void record(std::uint32_t index) {
    const std::size_t lane = linear_.records[index].lane;
    join(clock(lane), host_clock_.data());
    std::copy_n(clock(lane), lanes_, &record_clocks_[index * lanes_]);
  }

  void wait(std::uint32_t index) {
    const LinearWait& wait = linear_.waits[index];
    if (wait.record == kNone) return;
    const LaneId other = linear_.records[wait.record].lane;
    if (other != wait.lane) pending_[wait.lane].push_back({index, clock(wait.lane)[other]});
    join(clock(wait.lane), &record_clocks_[wait.record * lanes_]);
  }

  void host_wait(std::uint32_t index) {
    join(host_clock_.data(), &begin_clocks_[index * lanes_]);
    host_clock_[op(index).lane] = std::max(host_clock_[op(index).lane], op(index).position + 1);
  }

  void launch(std::uint32_t i) {
    const LaneId lane = op(i).lane;
    join(clock(lane), host_clock_.data());
    if (!begin_clocks_.empty()) std::copy_n(clock(lane), lanes_, &begin_clocks_[i * lanes_]);
    std::fill(need_.begin(), need_.end(), 0);
    if (is_send(kind(i))) count_unreceived(i);
    touch_buffers(i);
    if (!pending_[lane].empty()) {
      if (op(i).layer >= 0) judge_waits(i);
      pending_[lane].clear();
    }
    clock(lane)[lane] = op(i).position + 1;
  }

  void touch_buffers(std::uint32_t i) {
    const OpDef& def = plan_.ops[op(i).op];
    for (const BufferId buffer : def.reads) {
      const std::uint32_t writer = last_write_[slot(buffer, i)];
      if (conflict(Conflict::ReadAfterWrite, writer, i, buffer)) judge_value(i, buffer, writer);
    }
    for (const BufferId buffer : def.writes) {
      const std::size_t s = slot(buffer, i);
      conflict(Conflict::WriteAfterWrite, last_write_[s], i, buffer);
      for (std::size_t lane = 0; lane < lanes_; ++lane)
        conflict(Conflict::WriteAfterRead, last_read_[s * lanes_ + lane], i, buffer);
    }
    for (const BufferId buffer : def.reads) last_read_[slot(buffer, i) * lanes_ + op(i).lane] = i;
    for (const BufferId buffer : def.writes) {
      const std::size_t s = slot(buffer, i);
      last_write_[s] = i;
      std::fill_n(&last_read_[s * lanes_], lanes_, kNone);
    }
  }

  std::size_t slot(BufferId buffer, std::uint32_t i) const {
    return first_slot_[buffer] + static_cast<std::size_t>(slots_.slot(buffer, i));
  }

  /// Notes that op `i` must come after `before`. False, and a finding, when nothing in the plan makes it so.
  bool conflict(Conflict type, std::uint32_t before, std::uint32_t i, BufferId buffer) {
    if (before == kNone) return true;
    const LaneId lane = op(before).lane;
    need_[lane] = std::max(need_[lane], op(before).position + 1);
    if (clock(op(i).lane)[lane] > op(before).position) return true;
    const bool by_call = plan_.buffers[buffer].by == SlotBy::Call;
    const bool same_ubatch = op(before).ubatch == op(i).ubatch;
    const char* code = type == Conflict::ReadAfterWrite && same_ubatch ? "F5"
                       : by_call                                       ? "F6"
                       : same_ubatch                                   ? "F14"
                                                                       : "F8";
    findings_.add(code, true, {op(before).op, op(i).op, buffer, 0},
                  [&] { return words_.race(type, before, i, buffer, slots_.slot(buffer, i)); });
    return false;
  }

  /// Whether what lies in the slot is what the op means to read: its own ubatch's data, of its layer, or for what ends
  /// in the next layer's A0 (and the head) of the layers before.
  void judge_value(std::uint32_t i, BufferId buffer, std::uint32_t writer) {
    const OpKind reader = kind(i);
    if (reader == OpKind::Other || fill_[buffer].outside()) return;
    if (is_recv(reader) && plan_.buffers[buffer].by == SlotBy::Call) {
      if (writer != kNone && op(writer).call != op(i).call)
        findings_.add("F6", true, kOverflow,
                      [&] { return words_.overwritten(i, buffer, slots_.slot(buffer, i), writer); });
      return;
    }
    const bool next_layer = reader == OpKind::A0 || reader == OpKind::HEAD;
    if (op(i).layer < 0 && reader != OpKind::HEAD) return;
    std::int32_t layer = reader == OpKind::HEAD ? written_.last_layer() : op(i).layer - (next_layer ? 1 : 0);
    const std::int32_t latest = written_.latest(buffer, op(i).ubatch, layer);
    if (next_layer) {
      // Dense layers do not write the experts' part, and a layer of experts may have no shared one.
      const bool moe = layer >= 0 && plan_.shape.is_moe_layer(layer);
      const bool due = layer >= 0 && (moe ? fill_[buffer].moe_layers : fill_[buffer].dense_layers);
      if (!due) layer = latest;
      if (layer == kNever) return;
    }
    // Dispatches use the same slots, but the copy wants what its combine left.
    const bool of_dispatch = reader == OpKind::CCopy && writer != kNone && is_dispatch(kind(writer));
    if (of_dispatch) {
      report_late(i, buffer, layer, writer);
    } else if (writer != kNone && latest == layer && op(writer).ubatch != op(i).ubatch) {
      overwritten(i, buffer, writer, "F8");
    } else if (latest != layer || writer == kNone || op(writer).layer < layer) {
      report_late(i, buffer, layer, writer);
    } else if (op(writer).layer > layer) {
      overwritten(i, buffer, writer, "F14");
    }
  }

  void overwritten(std::uint32_t i, BufferId buffer, std::uint32_t writer, const char* code) {
    findings_.add(code, true, {op(writer).op, op(i).op, buffer, 1},
                  [&] { return words_.overwritten(i, buffer, slots_.slot(buffer, i), writer); });
  }

  void report_late(std::uint32_t i, BufferId buffer, std::int32_t layer, std::uint32_t stale) {
    findings_.add(received_[buffer] ? "F7" : "F5", true, {op(i).op, 0, buffer, 2},
                  [&] { return words_.late(i, buffer, layer, stale); });
  }

  /// Calls sent and not known to be received when the send `i` starts. A call may be lost when there are more than
  /// buffers. Twice as many buffers as calls are needed to be safe from peers that are ahead: their send k + slots only
  /// proves that their receive k + slots - f is over, so our send of that number, so our receive of k + slots - 2f.
  void count_unreceived(std::uint32_t i) {
    std::erase_if(unreceived_, [&](std::uint32_t send) {
      const std::uint32_t recv = op(send).pair;
      return recv != kNone && recv < i && clock(op(i).lane)[op(recv).lane] > op(recv).position;
    });
    const int slots = call_slots(plan_.ops[op(i).op]);
    const auto calls = static_cast<int>(unreceived_.size()) + 1;
    if (calls > slots) {
      findings_.add("F6", true, kOverflow, [&] { return words_.overflow(i, unreceived_, slots); });
    } else if (2 * calls > slots && calls > 1) {
      findings_.add("F6", false, {0, 0, 0, 4}, [&] { return words_.crowded(i, unreceived_, slots); });
    }
    unreceived_.push_back(i);
  }

  int call_slots(const OpDef& send) const {
    for (const BufferId buffer : send.writes)
      if (plan_.buffers[buffer].by == SlotBy::Call) return plan_.buffers[buffer].slots;
    const int handles = transport_info(plan_.transport).handle_slots;
    return handles > 0 ? handles : INT32_MAX;
  }

  void find_unreceived() {
    std::vector<const char*> code(plan_.ops.size(), nullptr);  // of the first of each op: the others are alike
    for (std::uint32_t i = 0; i < linear_.ops.size(); ++i) {
      if (!is_send(kind(i)) || op(i).pair != kNone) continue;
      const auto again = [&](const LinearOp& other) {
        return other.op == op(i).op && other.ubatch == op(i).ubatch && other.layer == op(i).layer;
      };
      const char*& c = code[op(i).op];
      if (c == nullptr) c = std::any_of(linear_.ops.begin() + i + 1, linear_.ops.end(), again) ? "F6" : "F7";
      findings_.add(c, true, {op(i).op, 0, 0, 5}, [&] {
        if (c[1] == '6') return words_.name(i) + " is launched again before its receive: the first is lost";
        return words_.name(i) + " is never received: no hook or launch runs its " +
               plan_.ops[*plan_.ops[op(i).op].pairs].name;
      });
    }
  }

  /// Of the waits right before op `i`, the one that covers what the op needs of another lane and no more than any other
  /// that does: whether it covers work of another ubatch too, launched between what is needed and the record. Waits
  /// that cover more may be for an op whose layer this iteration lacks.
  void judge_waits(std::uint32_t i) {
    const std::vector<PendingWait>& pending = pending_[op(i).lane];
    for (LaneId lane = 0; lane < lanes_; ++lane) {
      const std::uint32_t need = need_[lane];
      const LinearWait* tightest = nullptr;
      std::uint32_t known = UINT32_MAX, until = UINT32_MAX;
      for (const PendingWait& candidate : pending) {
        const LinearWait& wait = linear_.waits[candidate.wait];
        const LinearRecord& record = linear_.records[wait.record];
        if (record.lane != lane) continue;
        known = std::min(known, candidate.known);
        if (record.position < need || record.position >= until) continue;
        tightest = &wait;
        until = record.position;
      }
      if (tightest != nullptr && need > known) judge_wait(i, *tightest, need, until);
    }
  }

  void judge_wait(std::uint32_t i, const LinearWait& wait, std::uint32_t need, std::uint32_t until) {
    const std::vector<QueueItem>& queue = linear_.queues[linear_.records[wait.record].lane];
    for (std::uint32_t p = until; p-- > need;) {
      if (queue[p].kind != QueueItem::Kind::Op || op(queue[p].index).ubatch == op(i).ubatch) continue;
      const std::uint32_t extra = queue[p].index, needed = queue[need - 1].index;
      findings_.add("F3", false, {op(i).op, op(extra).op, op(needed).op, 0},
                    [&] { return words_.late_event(i, wait, needed, extra); });
      return;
    }
  }

  const Plan& plan_;
  const Linear& linear_;
  Findings& findings_;
  DataCheckWords words_;
  SlotMap slots_;
  WrittenLayers written_;
  std::size_t lanes_;
  std::vector<std::uint32_t> clocks_, host_clock_;  ///< by lane, then lane; what the host has seen end
  std::vector<std::uint32_t> need_;                 ///< by lane: how far the op being launched needs it
  std::vector<std::uint32_t> record_clocks_;        ///< by record, then lane
  std::vector<std::uint32_t> begin_clocks_;         ///< by op, then lane; empty when the host waits for no end
  std::vector<std::vector<PendingWait>> pending_;   ///< by lane: waits since its last op
  std::vector<std::size_t> first_slot_;             ///< by buffer
  std::vector<std::uint32_t> last_write_;           ///< by slot
  std::vector<std::uint32_t> last_read_;            ///< by slot, then lane: since the last write
  std::vector<std::uint32_t> unreceived_;           ///< sends
  std::vector<bool> received_;                      ///< by buffer: a receive fills it
  std::vector<Filled> fill_;                        ///< by buffer
};

}  // namespace

void check_data(const Plan& plan, const RankClass& rank_class, const Linear& linear, Findings& findings) {
  DataCheck(plan, rank_class, linear, findings).run();
}

}  // namespace dbo
