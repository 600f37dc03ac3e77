#include "tests/kernels/emulation/simt.h"

#include <csetjmp>

#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <map>
#include <stdexcept>
#include <utility>

#include "tests/kernels/a2a_reference.h"

namespace dbo::simt {
namespace {

constexpr std::size_t kStackBytes = 64 * 1024;
/// One turn of the scheduler over all threads counts as this long.
constexpr std::uint64_t kTurnNs = 100;

struct Rendezvous {
  int arrived = 0;
  std::uint64_t generation = 0;
};

struct Warp {
  Rendezvous meet;
  std::uint64_t values[2][32] = {};
};

struct Copy {
  void* to;
  const void* from;
  std::uint32_t bytes;
};

struct Bar {
  std::uint64_t completed = 0;
  std::vector<Copy> pending;
};

struct Block {
  const Grid* grid = nullptr;
  int index = 0, running = 0;
  std::vector<std::byte> memory;
  std::byte* shared = nullptr;
  Rendezvous barriers[16];
  std::vector<Warp> warps;
  std::map<std::uint64_t*, Bar> bars;
};

struct Fiber {
  ucontext_t context{};  ///< enters the fiber the first time; later switches jump, which saves the system calls
  std::jmp_buf resume{};
  bool entered = false;
  void* stack = nullptr;
  Block* block = nullptr;
  int thread = 0;
  bool done = false;
  const std::uint64_t* wait_word = nullptr;  ///< not runnable while it holds wait_value
  std::uint64_t wait_value = 0;
  std::vector<Copy> open_group;
  std::vector<std::vector<Copy>> groups;
};

/// Fibers whose thread has ended wait here for another thread, in this run or a later one: making one takes several
/// system calls.
std::vector<std::unique_ptr<Fiber>>& idle_fibers() {
  static std::vector<std::unique_ptr<Fiber>> fibers;
  return fibers;
}

}  // namespace

/// Scheduler of one run. One at a time.
class Machine {
 public:
  explicit Machine(const Options& options) : options_(options), random_(options.seed) {}
  std::string run(std::vector<Queue*> queues);

  /// What a fiber does, thread after thread; the machine may be another one each time.
  static void entry() {
    while (true) {
      current_->running_->block->grid->body();
      current_->running_->done = true;
      current_->yield();
    }
  }
  void yield() {
    if (_setjmp(running_->resume) == 0) longjmp(main_, 1);
  }
  void wait(const std::uint64_t& word) {
    running_->wait_word = &word;
    running_->wait_value = word;
    yield();
  }
  [[noreturn]] void fail(const std::string& message) {
    if (failure_.empty()) failure_ = message;
    while (true) yield();
  }

  Fiber& fiber() { return *running_; }
  std::uint64_t now = 1'000'000;
  static Machine* current_;

 private:
  struct Lane {
    Queue* queue;
    std::size_t item = 0;
    int next_block = 0, live_blocks = 0;
  };
  bool start_blocks();
  void start_block(Lane& lane, int index);
  bool turn();
  void resume(Fiber& fiber);
  /// A quarter of the warps, others every now and then, makes no headway: warps drift apart as on hardware.
  bool is_held_up(const Fiber& fiber) const {
    const std::uint64_t warp = static_cast<std::uint64_t>(fiber.block->index * 1024 + fiber.thread / 32);
    const std::uint64_t mixed =
        ((now / kTurnNs / 24) * 0x9e3779b97f4a7c15u + options_.seed + warp) * 0xbf58476d1ce4e5b9u;
    return (mixed >> 60) < 4;
  }
  std::uint64_t draw() { return random_ = random_ * 6364136223846793005u + 1442695040888963407u, random_ >> 33; }

  Options options_;
  std::uint64_t random_;
  std::vector<Lane> lanes_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::map<Block*, std::pair<std::unique_ptr<Block>, std::size_t>> blocks_;  // with the lane each came from
  Fiber* running_ = nullptr;
  std::jmp_buf main_{};
  std::string failure_;
};

Machine* Machine::current_ = nullptr;

namespace {

/// A function of its own: getcontext may return twice as far as the compiler knows.
[[gnu::noinline]] void init_context(Fiber& fiber, std::size_t shift) {
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack;
  fiber.context.uc_stack.ss_size = kStackBytes - shift;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, &Machine::entry, 0);
}

std::unique_ptr<Fiber> take_fiber() {
  if (!idle_fibers().empty()) {
    std::unique_ptr<Fiber> fiber = std::move(idle_fibers().back());
    idle_fibers().pop_back();
    fiber->done = false;
    return fiber;
  }
  auto fiber = std::make_unique<Fiber>();
  fiber->stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (fiber->stack == MAP_FAILED) throw std::runtime_error("no memory for a fiber's stack");
  // Stacks that all ended at the same distance from a page would compete for the same few lines of the CPU's caches.
  static std::size_t made = 0;
  init_context(*fiber, made++ % 64 * 320);
  return fiber;
}

}  // namespace

void Machine::start_block(Lane& lane, int index) {
  const Grid& grid = lane.queue->items_[lane.item].grid;
  auto block = std::make_unique<Block>();
  block->grid = &grid;
  block->index = index;
  block->running = grid.threads;
  block->memory.assign(grid.shared_bytes + 128, std::byte{0xcd});
  const auto address = reinterpret_cast<std::uintptr_t>(block->memory.data());
  block->shared = block->memory.data() + (128 - address % 128) % 128;
  block->warps.resize(static_cast<std::size_t>((grid.threads + 31) / 32));
  for (int thread = 0; thread < grid.threads; ++thread) {
    std::unique_ptr<Fiber> fiber = take_fiber();
    fiber->block = block.get();
    fiber->thread = thread;
    fibers_.push_back(std::move(fiber));
  }
  ++lane.live_blocks;
  Block* const key = block.get();
  blocks_.emplace(key, std::pair{std::move(block), static_cast<std::size_t>(&lane - lanes_.data())});
}

/// Starts what may start; true if something did (or a host action ran).
bool Machine::start_blocks() {
  bool progress = false, again = true;
  while (again) {
    again = false;
    for (Lane& lane : lanes_) {
      if (lane.item >= lane.queue->items_.size()) continue;
      Queue::Item& item = lane.queue->items_[lane.item];
      if (item.action) {
        item.action();
        ++lane.item;
        again = progress = true;
      } else if (lane.next_block < item.grid.blocks) {
        if (static_cast<int>(blocks_.size()) >= options_.sms) continue;
        start_block(lane, lane.next_block++);
        again = progress = true;
      } else if (lane.live_blocks == 0) {
        lane.next_block = 0;
        ++lane.item;
        again = progress = true;
      }
    }
  }
  return progress;
}

void Machine::resume(Fiber& fiber) {
  running_ = &fiber;
  if (_setjmp(main_) != 0) return;
  if (running_->entered) longjmp(running_->resume, 1);
  running_->entered = true;
  setcontext(&running_->context);
}

/// Resumes every runnable fiber once, beginning at a drawn one; true if there was any.
bool Machine::turn() {
  bool progress = false;
  const std::size_t number = fibers_.size(), first = number == 0 ? 0 : draw() % number;
  const bool backward = draw() % 2 == 0;
  for (std::size_t i = 0; i < number && failure_.empty(); ++i) {
    Fiber& fiber = *fibers_[backward ? (first + number - i) % number : (first + i) % number];
    if (fiber.done) continue;
    if (fiber.wait_word != nullptr) {
      if (*fiber.wait_word == fiber.wait_value) continue;
      fiber.wait_word = nullptr;
    }
    progress = true;
    if (!is_held_up(fiber)) resume(fiber);
  }
  now += kTurnNs;
  // Retire threads and blocks.
  std::erase_if(fibers_, [this](std::unique_ptr<Fiber>& fiber) {
    if (!fiber->done) return false;
    if (!fiber->groups.empty() || !fiber->open_group.empty()) failure_ = "a thread ended with bulk stores in flight";
    if (--fiber->block->running == 0) {
      const auto it = blocks_.find(fiber->block);
      --lanes_[it->second.second].live_blocks;
      blocks_.erase(it);
    }
    if (fiber->groups.empty()) idle_fibers().push_back(std::move(fiber));
    return true;
  });
  return progress;
}

std::string Machine::run(std::vector<Queue*> queues) {
  for (Queue* queue : queues) lanes_.push_back({queue});
  current_ = this;
  while (failure_.empty()) {
    const bool started = start_blocks();
    if (fibers_.empty() && !started) break;
    const bool ran = turn();
    if (!started && !ran) failure_ = "deadlock: every thread waits at a barrier";
  }
  current_ = nullptr;
  // Threads that a failure stopped midway cannot be taken up again.
  for (const auto& fiber : fibers_) munmap(fiber->stack, kStackBytes);
  for (const Lane& lane : lanes_) {
    if (failure_.empty() && lane.item < lane.queue->items_.size()) failure_ = "a queue did not finish";
  }
  return failure_;
}

void Queue::launch(Grid grid) {
  items_.push_back({std::move(grid), {}});
}
void Queue::host(std::function<void()> action) {
  items_.push_back({{}, std::move(action)});
}

std::string run(std::vector<Queue*> queues, const Options& options) {
  return Machine(options).run(std::move(queues));
}

namespace detail {
namespace {

Machine& machine() {
  return *Machine::current_;
}
Fiber& fiber() {
  return machine().fiber();
}
Block& block() {
  return *fiber().block;
}

void meet(Rendezvous& r, int threads) {
  if (++r.arrived == threads) {
    r.arrived = 0;
    ++r.generation;
    return;
  }
  if (r.arrived > threads) fail("more threads at a barrier than it has");
  machine().wait(r.generation);
}

void check_bulk(const void* shared, const void* global, std::uint32_t bytes) {
  const auto bits = reinterpret_cast<std::uintptr_t>(shared) | reinterpret_cast<std::uintptr_t>(global) | bytes;
  if (bits % 16 != 0) fail("a bulk copy's address or size is no multiple of 16");
  const auto* const first = static_cast<const std::byte*>(shared);
  if (first < block().shared || first + bytes > block().shared + block().grid->shared_bytes) {
    fail("a bulk copy leaves the block's shared memory");
  }
}

}  // namespace

int thread_index() {
  return fiber().thread;
}
int block_index() {
  return block().index;
}
int block_count() {
  return block().grid->blocks;
}
int block_threads() {
  return block().grid->threads;
}
std::byte* shared_memory() {
  return block().shared;
}

void barrier(int id, int threads) {
  meet(block().barriers[id], threads);
}

const std::uint64_t* exchange(std::uint64_t value) {
  Warp& warp = block().warps[static_cast<std::size_t>(thread_index() / 32)];
  // A lane cannot be two meetings ahead of another, so two sets of values are enough.
  std::uint64_t* const values = warp.values[warp.meet.generation % 2];
  values[thread_index() % 32] = value;
  meet(warp.meet, 32);
  return values;
}

void pause() {
  machine().yield();
}
std::uint64_t time_ns() {
  return machine().now;
}
void fail(const std::string& message) {
  machine().fail(message);
}

void bar_init(std::uint64_t* bar) {
  block().bars[bar] = {};
}

void load(void* shared, const void* global, std::uint32_t bytes, std::uint64_t* bar) {
  check_bulk(shared, global, bytes);
  const auto it = block().bars.find(bar);
  if (it == block().bars.end()) fail("a bulk load on a barrier that was not initialised");
  if (!it->second.pending.empty()) fail("a second bulk load on a barrier before the first was waited for");
  std::memset(shared, 0xee, bytes);
  it->second.pending.push_back({shared, global, bytes});
}

void bar_wait(std::uint64_t* bar, std::uint32_t parity) {
  const auto it = block().bars.find(bar);
  if (it == block().bars.end()) fail("a wait on a barrier that was not initialised");
  Bar& b = it->second;
  while (b.completed % 2 == parity) {
    if (b.pending.empty()) {
      pause();
      continue;
    }
    for (const Copy& copy : b.pending) std::memcpy(copy.to, copy.from, copy.bytes);
    b.pending.clear();
    ++b.completed;
  }
}

void store(void* global, const void* shared, std::uint32_t bytes) {
  check_bulk(shared, global, bytes);
  fiber().open_group.push_back({global, shared, bytes});
}

void commit() {
  fiber().groups.push_back(std::exchange(fiber().open_group, {}));
}

void wait_groups(int pending) {
  auto& groups = fiber().groups;
  while (static_cast<int>(groups.size()) > pending) {
    for (const Copy& copy : groups.front()) std::memcpy(copy.to, copy.from, copy.bytes);
    groups.erase(groups.begin());
  }
}

std::uint32_t pack_e4m3(float low, float high) {
  return std::uint32_t{a2a_test::to_e4m3(low)} | (std::uint32_t{a2a_test::to_e4m3(high)} << 8);
}

}  // namespace detail
}  // namespace dbo::simt
