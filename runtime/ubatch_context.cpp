#include "runtime/ubatch_context.h"

#include "sim/base/error.h"

namespace dbo::runtime {
namespace {

thread_local UbatchContext* current_context = nullptr;

// Layer code's own events, counted from the end of the plan's.
constexpr int kComputeDone = 0;
constexpr int kCommDone = 1;
constexpr int kPrevious = 2;

}  // namespace

UbatchContext* UbatchContext::current() {
  return current_context;
}

Device& UbatchContext::device() const {
  return group_.device_;
}

void UbatchContext::check_running() const {
  DBO_CHECK(current_context == this, "a context is used from another thread than its own");
  DBO_CHECK(state_ == State::Running, "a context is used before it entered or after it left the step");
  DBO_CHECK(group_.ring_->holds(thread_), "a context is used by a thread that does not hold the baton");
}

EventId UbatchContext::done_event(LaneId lane) const {
  DBO_CHECK(lane == kComputeLane || lane == kCommLane, "layer code knows two lanes");
  return static_cast<EventId>(group_.options_.plan_events + (lane == kComputeLane ? kComputeDone : kCommDone));
}

void UbatchContext::yield() {
  check_running();
  state_ = State::Parked;
  group_.ring_->yield(thread_);
  state_ = State::Running;
}

void UbatchContext::record(EventId event, LaneId lane) {
  check_running();
  device().record(thread_, event, lane);
}

void UbatchContext::wait(EventId event, LaneId lane) {
  check_running();
  device().wait(thread_, event, lane);
}

void UbatchContext::register_hook(Hook hook) {
  check_running();
  const int next = group_.ring_->next_of(thread_);
  UbatchContext& receiver = *group_.contexts_[static_cast<std::size_t>(next)];
  if (receiver.state_ == State::Exited) {
    throw FindingError("F7 hook misuse: " + group_.where(thread_) + " registers a hook for " + group_.where(next) +
                       ", which has left the step");
  }
  if (receiver.hook_) {
    throw FindingError("F7 hook misuse: " + group_.where(thread_) + " registers a hook for " + group_.where(next) +
                       ", whose slot still holds the one before it");
  }
  receiver.hook_ = std::move(hook);
}

void UbatchContext::run_hook() {
  check_running();
  if (!hook_) return;
  // Cleared first: what the hook does may register the next one here (a ring of one).
  const Hook hook = std::move(hook_);
  hook_ = nullptr;
  hook();
}

void UbatchContext::exit() {
  run_hook();
  state_ = State::Exited;
}

void UbatchContext::switch_to(LaneId lane) {
  check_running();
  lane_ = lane;
}

void UbatchContext::switch_to_synced(LaneId lane) {
  const EventId done = done_event(lane_);
  record(done, lane_);
  switch_to(lane);
  wait(done, lane);
}

void UbatchContext::yield_and_switch(LaneId from, LaneId to) {
  DBO_CHECK(lane_ == from, "yield-and-switch from a lane that is not the current one");
  const EventId done = done_event(from);
  // The record is made before the hand-over: after it, it would also cover what the sibling enqueues meanwhile.
  record(done, from);
  yield();
  lane_ = to;
  wait(done, to);
}

void UbatchContext::record_previous() {
  record(static_cast<EventId>(group_.options_.plan_events + kPrevious), kComputeLane);
}

void UbatchContext::wait_previous() {
  wait(static_cast<EventId>(group_.options_.plan_events + kPrevious), lane_);
}

UbatchGroup::UbatchGroup(Device& device, std::vector<int> ubatches, UbatchOptions options)
    : device_(device), options_(std::move(options)) {
  for (std::size_t i = 0; i < ubatches.size(); ++i) {
    contexts_.push_back(std::make_unique<UbatchContext>(*this, static_cast<int>(i), ubatches[i]));
  }
  ring_ = std::make_unique<Ring>(size(), RingOptions{.spin = options_.spin,
                                                     .bind = [this](int) { device_.bind_thread(); },
                                                     .on_stop = [this] { device_.stop(); },
                                                     .where = [this](int thread) { return where(thread); }});
}

std::string UbatchGroup::where(int thread) const {
  std::string text = "ubatch " + std::to_string(contexts_[static_cast<std::size_t>(thread)]->ubatch());
  const std::string last = options_.last_op ? options_.last_op(thread) : std::string();
  return last.empty() ? text : text + ", after " + last;
}

void UbatchGroup::check_hooks() const {
  for (const auto& context : contexts_) {
    if (context->hook_) {
      throw FindingError("F7 hook misuse: the hook registered for " + where(context->thread()) + " never ran");
    }
  }
}

void UbatchGroup::run(const std::function<void(UbatchContext&)>& body) {
  for (const auto& context : contexts_) {
    context->lane_ = kComputeLane;
    context->state_ = UbatchContext::State::Parked;
    context->hook_ = nullptr;
  }
  try {
    device_.begin_step();
    ring_->run([&](int thread) {
      UbatchContext& context = *contexts_[static_cast<std::size_t>(thread)];
      // Installed for as long as the body runs, an exception included.
      struct Install {
        explicit Install(UbatchContext* context) { current_context = context; }
        ~Install() { current_context = nullptr; }
      } install(&context);
      context.state_ = UbatchContext::State::Running;
      body(context);
      if (context.state_ != UbatchContext::State::Exited) context.exit();
    });
    check_hooks();
  } catch (...) {
    device_.abandon_step();
    throw;
  }
  device_.end_step();
}

bool in_ubatch() {
  return current_context != nullptr;
}

int current_ubatch() {
  return current_context != nullptr ? current_context->ubatch() : 0;
}

LaneId current_lane() {
  return current_context != nullptr ? current_context->lane() : kComputeLane;
}

void ubatch_yield() {
  if (current_context != nullptr) current_context->yield();
}

void switch_to_comm() {
  if (current_context != nullptr) current_context->switch_to(kCommLane);
}

void switch_to_compute() {
  if (current_context != nullptr) current_context->switch_to(kComputeLane);
}

void switch_to_comm_synced() {
  if (current_context != nullptr) current_context->switch_to_synced(kCommLane);
}

void switch_to_compute_synced() {
  if (current_context != nullptr) current_context->switch_to_synced(kComputeLane);
}

void yield_and_switch_to_comm() {
  if (current_context != nullptr) current_context->yield_and_switch(kComputeLane, kCommLane);
}

void yield_and_switch_to_compute() {
  if (current_context != nullptr) current_context->yield_and_switch(kCommLane, kComputeLane);
}

void record_previous_event() {
  if (current_context != nullptr) current_context->record_previous();
}

void wait_previous_event() {
  if (current_context != nullptr) current_context->wait_previous();
}

bool register_recv_hook(Hook hook) {
  if (current_context == nullptr) return false;
  current_context->register_hook(std::move(hook));
  return true;
}

void run_recv_hook() {
  if (current_context != nullptr) current_context->run_hook();
}

}  // namespace dbo::runtime
