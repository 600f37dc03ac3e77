#include "runtime/cuda/mpi_group.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "runtime/ring.h"
#include "sim/base/error.h"

namespace dbo::runtime {
namespace {

void check_mpi(int code, const char* what) {
  if (code != 0) throw NcclError(std::string("MPI error ") + std::to_string(code) + " in " + what);
}

class MpiGroup final : public HostGroup {
 public:
  explicit MpiGroup(const MpiPlugin& plugin) : plugin_(plugin) { check_mpi(plugin_.start(&rank_, &size_), "start"); }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::vector<std::string> gather(const std::string& mine) override {
    if (aborted_) throw Stopped{};
    const auto ranks = static_cast<std::size_t>(size_);
    const std::uint64_t length = mine.size();
    std::vector<std::uint64_t> lengths(ranks);
    check_mpi(plugin_.gather(&length, lengths.data(), sizeof length), "gather");
    const std::uint64_t longest = *std::max_element(lengths.begin(), lengths.end());
    std::vector<std::string> texts(ranks);
    if (longest == 0) return texts;
    std::vector<char> padded(longest), all(longest * ranks);
    std::memcpy(padded.data(), mine.data(), mine.size());
    check_mpi(plugin_.gather(padded.data(), all.data(), static_cast<long>(longest)), "gather");
    for (std::size_t rank = 0; rank < ranks; ++rank) texts[rank].assign(all.data() + rank * longest, lengths[rank]);
    return texts;
  }

  // MPI has no way to leave a collective alone: the launcher ends the others.
  void abort() noexcept override {
    if (!aborted_.exchange(true)) (void)plugin_.abort();
  }

 private:
  MpiPlugin plugin_;
  int rank_ = 0, size_ = 1;
  std::atomic<bool> aborted_{false};
};

}  // namespace

std::unique_ptr<HostGroup> open_mpi_group() {
  // Never closed: MPI must not be unloaded while it runs.
  void* library = dlopen("libdbo_mpi.so", RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) return nullptr;
  const auto entry = reinterpret_cast<MpiPluginEntry>(dlsym(library, kMpiPluginEntry));
  if (entry == nullptr) throw InputError("libdbo_mpi.so is of another release than this program");
  return std::make_unique<MpiGroup>(entry());
}

}  // namespace dbo::runtime
