#include "validate/faulty_device.h"

#include "sim/base/error.h"

namespace dbo::validate {

FaultyDevice::FaultyDevice(runtime::Device& inner, const Linear& linear, const Fault& fault,
                           std::function<void()> overwrite)
    : inner_(inner),
      linear_(linear),
      late_(fault.late_records.begin(), fault.late_records.end()),
      dropped_waits_(fault.dropped_waits.begin(), fault.dropped_waits.end()),
      dropped_ops_(fault.dropped_ops.begin(), fault.dropped_ops.end()),
      freed_after_(fault.freed_after.value_or(kNone)),
      overwrite_(std::move(overwrite)) {
  DBO_CHECK(freed_after_ == kNone || overwrite_ != nullptr, "a fault that overwrites memory, and nobody who does it");
}

void FaultyDevice::begin_step() {
  records_ = waits_ = 0;
  held_.clear();
  inner_.begin_step();
}

void FaultyDevice::launch(std::uint32_t plan_op) {
  if (dropped_ops_.count(plan_op) > 0) return;
  inner_.launch(plan_op);
  if (plan_op == freed_after_) overwrite_();
}

void FaultyDevice::record(int thread, EventId event, LaneId lane) {
  const std::uint32_t record = records_++;
  if (late_.count(record) > 0) {
    held_.insert(record);
  } else {
    inner_.record(thread, event, lane);
  }
}

void FaultyDevice::wait(int thread, EventId event, LaneId lane) {
  const std::uint32_t wait = waits_++;
  if (dropped_waits_.count(wait) > 0) return;
  const std::uint32_t record = linear_.waits[wait].record;
  if (record != kNone && held_.erase(record) > 0) inner_.record(thread, event, linear_.records[record].lane);
  inner_.wait(thread, event, lane);
}

void FaultyDevice::host_wait(std::uint32_t plan_op, bool notify) {
  if (dropped_ops_.count(plan_op) == 0) inner_.host_wait(plan_op, notify);
}

}  // namespace dbo::validate
