// Arrival between ranks: epochs, flags, waits with a deadline, emulated wires.
#pragma once

#include "kernels/a2a/device.cuh"

namespace dbo::kernels::device {

DBO_DEVICE std::byte* slot_data(const A2aCall& c, std::byte* base) {
  return base + c.layout.control_bytes + static_cast<std::size_t>(c.slot) * c.layout.slot_stride;
}
template <typename T>
DBO_DEVICE T* control(const A2aCall& c, std::byte* base, std::size_t offset) {
  return reinterpret_cast<T*>(base + static_cast<std::size_t>(c.slot) * c.layout.control_stride + offset);
}
DBO_DEVICE A2aState& state(const A2aCall& c) {
  return *control<A2aState>(c, c.base, c.layout.state);
}

/// Under which source index rank `peer` expects what this rank sends to it.
DBO_DEVICE int source_at(const A2aCall& c, int peer) {
  return c.mirrored ? peer : c.layout.dims.rank;
}

DBO_DEVICE void report(const A2aCall& c, std::uint32_t epoch, ProgressStage stage) {
  if (c.progress != nullptr) store_relaxed(c.progress, progress_word(epoch, stage));
}

/// True in one block only, the last of the grid to come here; what all blocks wrote before is then visible to it.
/// Contains block barriers. `flag` is a word of shared memory.
DBO_DEVICE bool is_last_block(std::uint32_t* counter, int* flag) {
  block_sync();
  if (thread_index() == 0) {
    const auto last = static_cast<std::uint32_t>(block_count() - 1);
    *flag = count_arrival(counter, last) == last ? 1 : 0;
  }
  block_sync();
  return *flag != 0;
}

/// The buffer this thread signals first, for kernels to look up early: the table is a memory access away.
DBO_DEVICE std::byte* first_peer(const A2aCall& c) {
  return thread_index() < c.layout.dims.ranks ? c.peers[thread_index()] : nullptr;
}

/// What this block adds to the arrival flags (call.h).
DBO_DEVICE std::uint32_t arrival_share() {
  const auto blocks = static_cast<std::uint32_t>(block_count());
  return kArrivalUnits / blocks + (block_index() == 0 ? kArrivalUnits % blocks : 0);
}

/// Adds `units` to this rank's arrival flag at every rank (this one too), behind all that the block has written; by the
/// whole block, after a barrier. Each block does it for itself: collecting the blocks first would put an atomic and a
/// second release behind the last store. `first` is the thread's first_peer. Stamps are for emulated wires, the latest
/// one counts; 0: none.
DBO_DEVICE void signal_peers(const A2aCall& c, std::byte* first, std::size_t flag, std::size_t stamp,
                             std::uint32_t units, std::uint64_t stamp_ns) {
  for (int peer = thread_index(); peer < c.layout.dims.ranks; peer += block_threads()) {
    std::byte* const base = peer == thread_index() ? first : c.peers[peer];
    const int source = source_at(c, peer);
    if (c.wire_ns > 0 && stamp_ns > 0) raise_relaxed(control<std::uint64_t>(c, base, stamp) + source, stamp_ns);
    add_release(control<std::uint32_t>(c, base, flag) + source, units);
  }
}

/// The time for a stamp; clocks are only read for an emulated wire.
DBO_DEVICE std::uint64_t stamp_now(const A2aCall& c) {
  return c.wire_ns > 0 ? global_time_ns() : 0;
}

/// Waits until `*flag` has reached `units` (one call's) times `epoch`; after the deadline it reports and traps.
DBO_DEVICE void wait_flag(const A2aCall& c, WaitOp op, const std::uint32_t* flag, std::uint32_t units,
                          std::uint32_t epoch, int source) {
  const std::uint32_t expected = units * epoch;
  std::uint32_t seen = load_acquire(flag);
  if (static_cast<std::int32_t>(seen - expected) >= 0) return;
  const std::uint64_t begin = global_time_ns();
  while (true) {
    for (int poll = 0; poll < 32; ++poll) {
      seen = load_acquire(flag);
      if (static_cast<std::int32_t>(seen - expected) >= 0) return;
      spin_pause();
    }
    const std::uint64_t waited = global_time_ns() - begin;
    if (waited > c.deadline_ns) {
      fail_wait(op, c.layout.dims.rank, c.slot, source, expected / units, seen / units, waited);
    }
  }
}

/// Holds until `wire_ns` after the source's stamp, on this GPU's clock.
DBO_DEVICE void hold_wire(const A2aCall& c, WaitOp op, std::uint64_t stamp_ns, int source) {
  const std::int64_t offset = c.clock_offset_ns != nullptr ? c.clock_offset_ns[source] : 0;
  const std::uint64_t until = stamp_ns - static_cast<std::uint64_t>(offset) + c.wire_ns;
  const std::uint64_t begin = global_time_ns();
  // A wrong clock offset would hold for ever; the deadline is counted on top of the wire's own time.
  while (static_cast<std::int64_t>(until - global_time_ns()) > 0) {
    const std::uint64_t waited = global_time_ns() - begin;
    if (waited > c.deadline_ns + c.wire_ns) fail_wait(op, c.layout.dims.rank, c.slot, source, 0, 0, waited);
    spin_pause();
  }
}

/// Waits, by a whole block, for all sources' flags to count `epoch` calls of `units` each. With one unit flags hold the
/// copied epochs of copy-engine, which has none for its own rank: own rows are in place already.
DBO_DEVICE void wait_for_sources(const A2aCall& c, WaitOp op, std::size_t flag, std::uint32_t units,
                                 std::uint32_t epoch) {
  for (int source = thread_index(); source < c.layout.dims.ranks; source += block_threads()) {
    if (units == 1 && source == c.layout.dims.rank) continue;
    wait_flag(c, op, control<std::uint32_t>(c, c.base, flag) + source, units, epoch, source);
  }
  block_sync();
}

/// Holds, by a whole block, until the emulated wire has delivered from all sources, whose stamps are here. Own rows
/// travel on no wire; but where one GPU plays many ranks (mirrored), some of them are as late as this rank is.
DBO_DEVICE void hold_for_sources(const A2aCall& c, WaitOp op, std::size_t stamp) {
  if (c.wire_ns == 0) return;
  for (int source = thread_index(); source < c.layout.dims.ranks; source += block_threads()) {
    if (source == c.layout.dims.rank && !c.mirrored) continue;
    hold_wire(c, op, load_acquire(control<std::uint64_t>(c, c.base, stamp) + source), source);
  }
  block_sync();
}

}  // namespace dbo::kernels::device
