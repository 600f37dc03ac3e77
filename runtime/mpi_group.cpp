#include "runtime/mpi_group.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <exception>
#include <filesystem>
#include <system_error>

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

  ~MpiGroup() override {
    // With a rank gone, or on the way out with an error, the end would never come: MPI then ends all that is left.
    if (aborted_) return;
    if (std::uncaught_exceptions() > exceptions_) {
      abort();
    } else {
      (void)plugin_.finish();
    }
  }
  MpiGroup(const MpiGroup&) = delete;
  MpiGroup& operator=(const MpiGroup&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::vector<std::string> gather(const std::string& mine) override {
    if (aborted_) throw Stopped{};
    const auto ranks = static_cast<std::size_t>(size_);
    const std::uint64_t length = mine.size();
    std::vector<std::uint64_t> lengths(ranks);
    exchange(&length, lengths.data(), sizeof length);
    const std::uint64_t longest = *std::max_element(lengths.begin(), lengths.end());
    std::vector<std::string> texts(ranks);
    if (longest == 0) return texts;
    std::vector<char> padded(longest), all(longest * ranks);
    std::memcpy(padded.data(), mine.data(), mine.size());
    exchange(padded.data(), all.data(), longest);
    for (std::size_t rank = 0; rank < ranks; ++rank) texts[rank].assign(all.data() + rank * longest, lengths[rank]);
    return texts;
  }

  void limit(Ns deadline) override { deadline_ = deadline; }

  // MPI has no way to leave a collective alone: the launcher ends the others.
  void abort() noexcept override {
    if (!aborted_.exchange(true)) (void)plugin_.abort();
  }

 private:
  void exchange(const void* mine, void* all, std::size_t bytes) {
    const auto limit_ms = std::chrono::duration_cast<std::chrono::milliseconds>(deadline_).count();
    const int code = plugin_.gather(mine, all, static_cast<long>(bytes), static_cast<long>(limit_ms));
    if (code == -1) {
      throw NcclError("rank " + std::to_string(rank_) + " of " + std::to_string(size_) +
                      " waits at a host barrier over MPI; a rank has not come for " + std::to_string(limit_ms) + " ms");
    }
    check_mpi(code, "gather");
  }

  MpiPlugin plugin_;
  Ns deadline_ = kHostDeadline;
  int rank_ = 0, size_ = 1;
  const int exceptions_ = std::uncaught_exceptions();
  std::atomic<bool> aborted_{false};
};

std::string program_folder() {
  std::error_code none;
  return std::filesystem::read_symlink("/proc/self/exe", none).parent_path().string();
}

}  // namespace

std::unique_ptr<HostGroup> open_mpi_group() {
  const std::string folder = program_folder();
  void* library = nullptr;
  // Never closed: MPI must not be unloaded while it runs.
  for (const std::string& place :
       {std::string(), folder + "/", folder + "/../lib/", folder + "/../runtime/mpi_plugin/"}) {
    if (library == nullptr) library = dlopen((place + "libdbo_mpi.so").c_str(), RTLD_NOW | RTLD_GLOBAL);
  }
  if (library == nullptr) return nullptr;
  const auto entry = reinterpret_cast<MpiPluginEntry>(dlsym(library, kMpiPluginEntry));
  if (entry == nullptr) throw InputError("libdbo_mpi.so is of another release than this program");
  return std::make_unique<MpiGroup>(entry());
}

}  // namespace dbo::runtime
