// The host side of a group of ranks: barrier and exchange of small texts, whatever carries them. In one process here;
// over NCCL's bootstrap or MPI in runtime/cuda.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "sim/base/units.h"

namespace dbo::runtime {

/// One rank's membership. Every call but `limit` and `abort` is collective: all ranks make the same calls in the same
/// order.
class HostGroup {
 public:
  HostGroup() = default;
  HostGroup(const HostGroup&) = delete;
  HostGroup& operator=(const HostGroup&) = delete;
  virtual ~HostGroup() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Every rank's text, by rank. Throws NcclError when a rank does not come within the deadline, Stopped after `abort`.
  virtual std::vector<std::string> gather(const std::string& mine) = 0;
  /// Returns once every rank has come. Throws as `gather`.
  virtual void barrier() { gather({}); }
  /// From here on a rank that does not come within `deadline` is an error. The longest that a rank may take beside the
  /// others is what set-up takes; steps are short.
  virtual void limit(Ns deadline) = 0;
  /// Releases every rank that waits here, now and later. From any thread.
  virtual void abort() noexcept = 0;
};

/// How long ranks wait for each other on the host: far longer than loading a model's kernels takes, far shorter than an
/// engineer's patience.
inline constexpr Ns kHostDeadline{120'000'000'000};

/// Ranks that are threads of one process.
class InProcessGroup {
 public:
  explicit InProcessGroup(int ranks, Ns deadline = kHostDeadline);
  ~InProcessGroup();
  HostGroup& member(int rank);

 private:
  struct Shared;
  class Member;
  std::shared_ptr<Shared> shared_;
  std::vector<std::unique_ptr<Member>> members_;
};

/// Runs `body` once per rank of the group, each on a thread of its own, and returns when all have returned. The first
/// exception of any rank, as itself; the others are released by `abort`, and by `stop(rank)` where they wait elsewhere.
void run_ranks(InProcessGroup& group, int ranks, const std::function<void(HostGroup&)>& body,
               const std::function<void(int rank)>& stop = {});

/// One thing all ranks must agree on before the first launch.
struct Agreement {
  std::string what;   ///< "plan hash"
  std::string value;  ///< this rank's
};

/// Throws InputError on every rank, naming the first rank that differs from rank 0 and both values.
void check_agreement(HostGroup& group, const std::vector<Agreement>& agreements);

}  // namespace dbo::runtime
