#include "runtime/cuda/stand_in_table.h"

#include <algorithm>
#include <bit>

#include "runtime/cuda/check.h"
#include "sim/base/error.h"

namespace dbo::runtime {
namespace {

// %globaltimer times a stand-in well enough as long as a tick is a small part of the shortest ones (20 us).
constexpr std::uint64_t kFineTick = 100;

int count_calls(const Linear& linear) {
  std::uint32_t calls = 0;
  for (const LinearOp& op : linear.ops) {
    if (op.call != kNone) calls = std::max(calls, op.call + 1);
  }
  return static_cast<int>(calls);
}

std::size_t most_bytes(const std::vector<StandInWork>& work) {
  std::int64_t most = 0;
  for (const StandInWork& w : work) most = std::max(most, w.copy_bytes);
  return (static_cast<std::size_t>(most) + 15) / 16 * 16;
}

kernels::StandInRole role_of(OpKind kind) {
  if (is_send(kind)) return kernels::StandInRole::Send;
  if (is_recv(kind)) return kernels::StandInRole::Receive;
  if (is_collective(kind)) return kernels::StandInRole::Collective;
  return kernels::StandInRole::Work;
}

}  // namespace

kernels::TimerProbe probe_timer() {
  const DeviceBuffer result(sizeof(kernels::TimerProbe));
  const Stream stream = Stream::create(false);
  kernels::TimerProbe probe{};
  // Twice: the first run raises the clock.
  for (int i = 0; i < 2; ++i) {
    DBO_CUDA_CHECK(kernels::launch_timer_probe(result.as<kernels::TimerProbe>(), stream.get()));
    DBO_CUDA_CHECK(cudaStreamSynchronize(stream.get()));
  }
  DBO_CUDA_CHECK(cudaMemcpy(&probe, result.get(), sizeof probe, cudaMemcpyDeviceToHost));
  return probe;
}

StandInTable::StandInTable(HostGroup& group, const Placement& placement, const Plan& plan, const Linear& linear,
                           const std::vector<StandInWork>& work, const HostWords& progress,
                           const kernels::TimerProbe& timer, StandInOptions options)
    : plan_(plan),
      linear_(linear),
      options_(options),
      rank_(group.rank()),
      ranks_(group.size()),
      calls_(count_calls(linear)),
      timer_(timer),
      mailbox_(kernels::mailbox_bytes(ranks_, std::max(calls_, 1))),
      stamps_(std::max<std::size_t>(linear.ops.size(), 1) * sizeof(kernels::OpStamp)),
      source_(most_bytes(work)),
      target_(std::max<std::size_t>(most_bytes(work), 16)),
      clocks_(static_cast<std::size_t>(ranks_) * sizeof(std::int64_t)),
      mailboxes_(group, placement, mailbox_.get()),
      targets_(group, placement, target_.get()),
      notify_(static_cast<std::size_t>(std::max(calls_, 1))),
      ordinal_(linear.ops.size(), 0) {
  DBO_CHECK(work.size() == linear.ops.size(), "a stand-in for each op of the plan");
  if (ranks_ > kernels::kStandInRanks) {
    throw InputError("stand-ins serve at most " + std::to_string(kernels::kStandInRanks) + " ranks, not " +
                     std::to_string(ranks_));
  }
  DBO_CUDA_CHECK(kernels::prepare_stand_in());
  for (const auto& queue : linear.queues) {
    std::uint32_t count = 0;
    for (const QueueItem& item : queue) {
      if (item.kind == QueueItem::Kind::Op) ordinal_[item.index] = ++count;
    }
  }
  for (std::uint32_t op = 0; op < linear.ops.size(); ++op) {
    const kernels::StandInArgs args = args_of(op, work[op], progress);
    table_.ops.push_back(
        {[args](cudaStream_t stream) { DBO_CUDA_CHECK(kernels::launch_stand_in(args, stream)); }, true});
  }
  const kernels::StepBeginArgs begin{mailbox_.get(), stamps_.as<kernels::OpStamp>(),
                                     static_cast<int>(linear.ops.size())};
  table_.begin = [begin](cudaStream_t stream) { DBO_CUDA_CHECK(kernels::launch_step_begin(begin, stream)); };
  table_.counts_known = [this](std::uint32_t plan_op, std::uint32_t step) {
    return notify_.load(linear_.ops[plan_op].call) >= step;
  };
}

kernels::StandInArgs StandInTable::args_of(std::uint32_t plan_op, const StandInWork& work,
                                           const HostWords& progress) const {
  const LinearOp& op = linear_.ops[plan_op];
  kernels::StandInArgs args;
  args.role = role_of(plan_.op(op.op).kind);
  args.stamp = stamps_.as<kernels::OpStamp>() + plan_op;
  args.duration_ns = static_cast<std::uint64_t>(work.time.count());
  args.blocks = work.blocks;
  args.whole_sm = work.whole_sm;
  args.mailbox = mailbox_.get();
  args.ranks = ranks_;
  args.clock_offset_ns = clocks_.as<std::int64_t>();
  args.rank = rank_;
  args.calls = std::max(calls_, 1);
  args.call = op.call == kNone ? 0 : static_cast<int>(op.call);
  for (int peer = 0; peer < ranks_; ++peer) {
    args.peers[peer] = mailboxes_.pointers()[static_cast<std::size_t>(peer)];
  }
  args.wire_ns = static_cast<std::uint64_t>(work.wire.count());
  args.deadline_ns = static_cast<std::uint64_t>(options_.deadline.count());
  args.notify_ns = static_cast<std::uint64_t>(work.notify.count());
  if (args.role == kernels::StandInRole::Collective) args.notify_word = notify_.device(op.call);
  args.progress = progress.device(op.lane);
  args.ordinal = ordinal_[plan_op];
  if (timer_.tick_ns > kFineTick) args.cycles_per_1024_ns = timer_.cycles_per_1024_ns;
  const bool sends = args.role == kernels::StandInRole::Send || args.role == kernels::StandInRole::Collective;
  if (work.copy_bytes > 0 && args.role != kernels::StandInRole::Receive) {
    args.bytes = (static_cast<std::uint64_t>(work.copy_bytes) + 15) / 16 * 16;
    args.src = source_.get();
    const int to = sends ? (rank_ + 1) % ranks_ : rank_;
    args.dst = targets_.pointers()[static_cast<std::size_t>(to)];
  }
  return args;
}

std::vector<kernels::OpStamp> StandInTable::read_stamps() const {
  std::vector<kernels::OpStamp> stamps(linear_.ops.size());
  if (stamps.empty()) return stamps;
  DBO_CUDA_CHECK(
      cudaMemcpy(stamps.data(), stamps_.get(), stamps.size() * sizeof(kernels::OpStamp), cudaMemcpyDeviceToHost));
  return stamps;
}

void StandInTable::set_clocks(const std::vector<ClockOffset>& clocks, cudaStream_t stream) {
  std::vector<std::int64_t> offsets;
  for (const ClockOffset& clock : clocks) offsets.push_back(clock.offset_ns);
  DBO_CUDA_CHECK(cudaMemcpyAsync(clocks_.get(), offsets.data(), offsets.size() * sizeof(std::int64_t),
                                 cudaMemcpyHostToDevice, stream));
}

std::int64_t StandInTable::step_begin_ns() const {
  std::uint64_t begin = 0;
  DBO_CUDA_CHECK(
      cudaMemcpy(&begin, mailbox_.get() + kernels::kMailboxBeginOffset, sizeof begin, cudaMemcpyDeviceToHost));
  return static_cast<std::int64_t>(begin);
}

std::vector<OpTime> StandInTable::times() const {
  std::vector<OpTime> times;
  for (const kernels::OpStamp& stamp : read_stamps()) {
    OpTime time;
    time.ran = stamp.end_ns != 0;
    time.begin_ns = static_cast<std::int64_t>(stamp.begin_ns);
    time.ready_ns = static_cast<std::int64_t>(stamp.ready_ns);
    time.end_ns = static_cast<std::int64_t>(stamp.end_ns);
    for (const std::uint32_t word : stamp.sm_mask) time.sms += std::popcount(word);
    times.push_back(time);
  }
  return times;
}

std::vector<std::vector<bool>> StandInTable::sms_used() const {
  std::vector<std::vector<bool>> used;
  for (const kernels::OpStamp& stamp : read_stamps()) {
    std::vector<bool> bits;
    for (const std::uint32_t word : stamp.sm_mask) {
      for (int bit = 0; bit < 32; ++bit) bits.push_back((word >> bit & 1u) != 0);
    }
    used.push_back(std::move(bits));
  }
  return used;
}

void StandInTable::check_arrivals() const {
  const std::vector<kernels::OpStamp> stamps = read_stamps();
  for (std::size_t i = 0; i < stamps.size(); ++i) {
    if (stamps[i].missing == 0) continue;
    throw NcclError(describe(plan_, linear_.ops[i]) + " of rank " + std::to_string(rank_) +
                    " gave up waiting for rank " + std::to_string(stamps[i].missing - 1));
  }
}

}  // namespace dbo::runtime
