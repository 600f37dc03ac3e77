#include "runtime/host_group.h"

#include <atomic>
#include <chrono>
#include <thread>

#include "runtime/ring.h"
#include "sim/base/error.h"

namespace dbo::runtime {
namespace {

// How long a rank waits for the others without going to sleep.
constexpr std::chrono::microseconds kAwake{200};

}  // namespace

struct InProcessGroup::Shared {
  Shared(int ranks, Ns limit) : deadline(limit), texts(static_cast<std::size_t>(ranks)), came(texts.size(), false) {}

  Ns deadline;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::string> texts;
  std::vector<bool> came;
  int arrived = 0;
  std::atomic<std::uint64_t> round{0};  ///< written under the lock; also polled without it
  std::vector<std::string> result;      ///< of the round that ended last
  bool aborted = false;
};

class InProcessGroup::Member final : public HostGroup {
 public:
  Member(std::shared_ptr<Shared> shared, int rank) : shared_(std::move(shared)), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(shared_->texts.size()); }

  std::vector<std::string> gather(const std::string& mine) override {
    std::unique_lock lock(shared_->mutex);
    if (shared_->aborted) throw Stopped{};
    const auto index = static_cast<std::size_t>(rank_);
    DBO_CHECK(!shared_->came[index], "a rank came twice to one host barrier");
    const std::uint64_t round = shared_->round;
    shared_->texts[index] = mine;
    shared_->came[index] = true;
    if (++shared_->arrived == size()) {
      shared_->result = shared_->texts;
      shared_->came.assign(shared_->came.size(), false);
      shared_->arrived = 0;
      ++shared_->round;
      shared_->changed.notify_all();
      return shared_->result;
    }
    // Ranks that begin a step together leave here together: a wake-up alone would set them tens of microseconds apart.
    lock.unlock();
    for (const auto begin = std::chrono::steady_clock::now();
         shared_->round == round && std::chrono::steady_clock::now() - begin < kAwake;) {
      std::this_thread::yield();
    }
    lock.lock();
    // The result of a round stays until the next one ends, for which every rank must have left this one.
    const bool done =
        shared_->changed.wait_for(lock, shared_->deadline, [&] { return shared_->round != round || shared_->aborted; });
    if (shared_->round != round) return shared_->result;
    if (done) throw Stopped{};
    throw NcclError(missing());
  }

  void limit(Ns deadline) override {
    const std::lock_guard lock(shared_->mutex);
    shared_->deadline = deadline;
  }

  void abort() noexcept override {
    const std::lock_guard lock(shared_->mutex);
    shared_->aborted = true;
    shared_->changed.notify_all();
  }

 private:
  std::string missing() const {
    std::string text =
        "rank " + std::to_string(rank_) + " waits at a host barrier; missing after " +
        std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(shared_->deadline).count()) + " ms: rank";
    for (std::size_t r = 0; r < shared_->came.size(); ++r) {
      if (!shared_->came[r]) text += " " + std::to_string(r);
    }
    return text;
  }

  std::shared_ptr<Shared> shared_;
  int rank_;
};

InProcessGroup::InProcessGroup(int ranks, Ns deadline) : shared_(std::make_shared<Shared>(ranks, deadline)) {
  DBO_CHECK(ranks >= 1, "a group needs a rank");
  for (int rank = 0; rank < ranks; ++rank) members_.push_back(std::make_unique<Member>(shared_, rank));
}

InProcessGroup::~InProcessGroup() = default;

HostGroup& InProcessGroup::member(int rank) {
  return *members_[static_cast<std::size_t>(rank)];
}

void run_ranks(InProcessGroup& group, int ranks, const std::function<void(HostGroup&)>& body,
               const std::function<void(int)>& stop) {
  std::mutex mutex;
  std::exception_ptr first;
  const auto fail = [&](int rank, std::exception_ptr error) {
    {
      const std::lock_guard lock(mutex);
      if (first) return;
      first = std::move(error);
    }
    group.member(rank).abort();
    for (int other = 0; stop && other < ranks; ++other) {
      if (other != rank) stop(other);
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          body(group.member(rank));
        } catch (const Stopped&) {
        } catch (...) {
          fail(rank, std::current_exception());
        }
      });
    }
  }
  if (first) std::rethrow_exception(first);
}

void check_agreement(HostGroup& group, const std::vector<Agreement>& agreements) {
  for (const Agreement& agreement : agreements) {
    const std::vector<std::string> values = group.gather(agreement.value);
    for (std::size_t rank = 1; rank < values.size(); ++rank) {
      if (values[rank] != values[0]) {
        throw InputError("the ranks differ in " + agreement.what + ": rank 0 has " + values[0] + ", rank " +
                         std::to_string(rank) + " has " + values[rank]);
      }
    }
  }
}

}  // namespace dbo::runtime
