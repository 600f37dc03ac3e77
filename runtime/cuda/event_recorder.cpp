#include "runtime/cuda/event_recorder.h"

#include <cmath>

#include "runtime/cuda/check.h"

namespace dbo::runtime {
namespace {

std::int64_t elapsed_ns(const Event& from, const Event& to) {
  float ms = 0;
  DBO_CUDA_CHECK(cudaEventElapsedTime(&ms, from.get(), to.get()));
  return std::llround(static_cast<double>(ms) * 1e6);
}

}  // namespace

EventRecorder::EventRecorder(std::size_t ops) : base_(Event::create(true)), streams_(ops, nullptr), seen_(ops, false) {
  for (std::size_t i = 0; i < ops; ++i) {
    begin_.push_back(Event::create(true));
    end_.push_back(Event::create(true));
  }
}

void EventRecorder::record(const Event& event, cudaStream_t stream, bool capturing) {
  // External: the event becomes a node of the graph that really records, instead of an edge.
  DBO_CUDA_CHECK(
      cudaEventRecordWithFlags(event.get(), stream, capturing ? cudaEventRecordExternal : cudaEventRecordDefault));
}

void EventRecorder::begin_step(cudaStream_t compute, bool capturing) {
  seen_.assign(seen_.size(), false);
  streams_.assign(streams_.size(), nullptr);
  record(base_, compute, capturing);
}

void EventRecorder::before_op(std::uint32_t plan_op, cudaStream_t stream, bool capturing) {
  record(begin_[plan_op], stream, capturing);
}

void EventRecorder::after_op(std::uint32_t plan_op, cudaStream_t stream, bool capturing) {
  record(end_[plan_op], stream, capturing);
  streams_[plan_op] = stream;
  seen_[plan_op] = true;
}

std::vector<OpTime> EventRecorder::times() const {
  std::vector<OpTime> times(seen_.size());
  for (std::size_t i = 0; i < times.size(); ++i) {
    if (!seen_[i]) continue;
    times[i].ran = true;
    times[i].begin_ns = elapsed_ns(base_, begin_[i]);
    times[i].end_ns = elapsed_ns(base_, end_[i]);
  }
  return times;
}

}  // namespace dbo::runtime
