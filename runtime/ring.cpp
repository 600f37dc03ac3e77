#include "runtime/ring.h"

#include <algorithm>
#include <chrono>

#include "sim/base/error.h"

namespace dbo::runtime {
namespace {

// The states of a thread's word.
constexpr std::uint32_t kIdle = 0;    // runs, or waits awake
constexpr std::uint32_t kBaton = 1;   // the baton was given to it
constexpr std::uint32_t kParked = 2;  // sleeps: whoever changes the word must notify
constexpr std::uint32_t kStop = 3;    // the step is over

using Clock = std::chrono::steady_clock;

void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// How long a waiter keeps its core to itself. After that it offers it between polls: on a machine with more threads than
// cores the baton's holder may be waiting for this very core.
constexpr Ns kSelfish{2'000};

// Polls until `done()` or until `spin` has passed; reads the clock only now and then.
template <typename Done>
bool spin_until(Ns spin, const Done& done) {
  if (done()) return true;
  if (spin <= Ns{}) return false;
  const Clock::time_point begin = Clock::now();
  for (Ns passed{}; passed < spin; passed = Clock::now() - begin) {
    for (int i = 0; i < 32; ++i) {
      if (done()) return true;
      cpu_relax();
    }
    if (passed > kSelfish) std::this_thread::yield();
  }
  return false;
}

}  // namespace

Ns default_spin(int threads) {
  return std::thread::hardware_concurrency() > static_cast<unsigned>(threads) ? kDefaultSpin : Ns{20'000};
}

Ring::Ring(int threads, RingOptions options)
    : options_(std::move(options)),
      slots_(static_cast<std::size_t>(std::max(threads, 0))),
      states_(static_cast<std::size_t>(std::max(threads, 0))) {
  DBO_CHECK(threads >= 1, "a ring needs a thread");
  threads_.reserve(slots_.size());
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this, i] { work(i); });
}

Ring::~Ring() {
  quit_ = true;
  generation_.fetch_add(1, std::memory_order_release);
  generation_.notify_all();
  threads_.clear();
}

void Ring::run(const std::function<void(int)>& body) {
  if (!is_stopped()) {
    body_ = &body;
    for (State& state : states_) state = {};
    running_.store(size(), std::memory_order_relaxed);
    holder_.store(0, std::memory_order_relaxed);
    std::uint32_t idle = kIdle;
    // A stop that came meanwhile wins: the word stays kStop.
    slots_[0].word.compare_exchange_strong(idle, kBaton, std::memory_order_release, std::memory_order_relaxed);
    generation_.fetch_add(1, std::memory_order_release);
    generation_.notify_all();
    int left = running_.load(std::memory_order_acquire);
    while (left > 0) {
      running_.wait(left, std::memory_order_acquire);
      left = running_.load(std::memory_order_acquire);
    }
    body_ = nullptr;
    holder_.store(-1, std::memory_order_relaxed);
  }
  const std::lock_guard lock(error_mutex_);
  if (error_) std::rethrow_exception(error_);
}

void Ring::work(int thread) {
  try {
    if (options_.bind) options_.bind(thread);
  } catch (...) {
    stop(std::current_exception());
  }
  for (std::uint32_t seen = 0;;) {
    spin_until(options_.spin, [&] { return generation_.load(std::memory_order_acquire) != seen; });
    while (generation_.load(std::memory_order_acquire) == seen) generation_.wait(seen, std::memory_order_acquire);
    ++seen;  // a generation is one run, and the next begins only when this thread has reported the end of this one
    if (quit_) return;
    try {
      take(thread);
      (*body_)(thread);
      finish(thread);
    } catch (const Stopped&) {
    } catch (...) {
      stop(std::current_exception());
    }
    if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_all();
  }
}

void Ring::yield(int thread) {
  DBO_CHECK(holds(thread), "only the holder of the baton can yield");
  State& state = states_[static_cast<std::size_t>(thread)];
  ++state.yields;
  if (size() == 1) {
    if (is_stopped()) throw Stopped{};
    return;
  }
  if (is_finished(next_of(thread))) fail_yield(thread);
  give(next_of(thread));
  take(thread);
}

void Ring::finish(int thread) {
  DBO_CHECK(holds(thread), "only the holder of the baton can finish");
  states_[static_cast<std::size_t>(thread)].finished = true;
  if (std::all_of(states_.begin(), states_.end(), [](const State& state) { return state.finished; })) return;
  if (is_finished(next_of(thread))) fail_finish(thread);
  give(next_of(thread));
}

void Ring::give(int thread) {
  Slot& slot = slots_[static_cast<std::size_t>(thread)];
  holder_.store(thread, std::memory_order_relaxed);
  std::uint32_t seen = slot.word.load(std::memory_order_relaxed);
  do {
    if (seen == kStop) throw Stopped{};
  } while (!slot.word.compare_exchange_weak(seen, kBaton, std::memory_order_release, std::memory_order_relaxed));
  if (seen == kParked) slot.word.notify_one();
}

void Ring::take(int thread) {
  std::atomic<std::uint32_t>& word = slots_[static_cast<std::size_t>(thread)].word;
  const auto given = [&] { return word.load(std::memory_order_relaxed) != kIdle; };
  if (!spin_until(options_.spin, given)) {
    std::uint32_t idle = kIdle;
    if (word.compare_exchange_strong(idle, kParked, std::memory_order_relaxed)) {
      while (word.load(std::memory_order_relaxed) == kParked) word.wait(kParked, std::memory_order_relaxed);
    }
  }
  std::uint32_t baton = kBaton;
  if (!word.compare_exchange_strong(baton, kIdle, std::memory_order_acquire, std::memory_order_acquire)) {
    throw Stopped{};
  }
}

void Ring::stop(std::exception_ptr error) noexcept {
  {
    const std::lock_guard lock(error_mutex_);
    if (error_) return;
    error_ = std::move(error);
  }
  stopped_.store(true, std::memory_order_release);
  for (Slot& slot : slots_) {
    slot.word.exchange(kStop, std::memory_order_acq_rel);
    slot.word.notify_all();
  }
  if (options_.on_stop) options_.on_stop();
}

std::string Ring::where(int thread) const {
  std::string text = "thread " + std::to_string(thread);
  if (options_.where) text += " (" + options_.where(thread) + ")";
  return text;
}

void Ring::fail_yield(int thread) const {
  const int next = next_of(thread);
  throw FindingError("F2 unequal yields: " + where(thread) + " waits at its yield " + std::to_string(yields(thread)) +
                     " for " + where(next) + ", which has finished after " + std::to_string(yields(next)) + " yields");
}

void Ring::fail_finish(int thread) const {
  const int next = next_of(thread);
  std::string text = "F2 unequal yields: " + where(thread) + " finished after " + std::to_string(yields(thread)) +
                     " yields and wakes thread " + std::to_string(next) + ", which has finished after " +
                     std::to_string(yields(next)) + " yields";
  for (int i = 0; i < size(); ++i) {
    if (is_finished(i)) continue;
    text += "; " + where(i) + " waits at its yield " + std::to_string(yields(i)) + " for thread " +
            std::to_string((i + size() - 1) % size());
  }
  throw FindingError(text);
}

HandoverCost measure_handover(int threads, int rounds, Ns spin) {
  DBO_CHECK(threads >= 2 && rounds >= 10, "a hand-over needs two threads, and some rounds for a median");
  std::vector<Clock::time_point> given(1);
  std::vector<std::int64_t> costs;
  costs.reserve(static_cast<std::size_t>(rounds) * static_cast<std::size_t>(threads));
  Ring ring(threads, {.spin = spin, .bind = {}, .on_stop = {}, .where = {}});
  // Shared without a lock: only the holder of the baton touches them. A parked receiver must really sleep, so the giver
  // lets some time pass before it hands over.
  ring.run([&](int thread) {
    for (int round = 0; round < rounds; ++round) {
      if (spin == Ns{}) std::this_thread::sleep_for(std::chrono::microseconds(50));
      given[0] = Clock::now();
      ring.yield(thread);
      costs.push_back(std::chrono::duration_cast<Ns>(Clock::now() - given[0]).count());
    }
  });
  std::sort(costs.begin(), costs.end());
  const auto quantile = [&](std::size_t percent) { return Ns{costs[(costs.size() - 1) * percent / 100]}; };
  return {quantile(50), quantile(10), quantile(90)};
}

}  // namespace dbo::runtime
