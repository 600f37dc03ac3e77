#include "runtime/launcher_env.h"

#include <charconv>
#include <string_view>

#include "sim/base/error.h"

namespace dbo::runtime {
namespace {

struct Variables {
  const char* launcher;
  const char* rank;
  const char* size;
  const char* local_rank;
  bool mpi;
};

// srun sets its variables for processes of a job that has nothing to do with ranks, too (a shell of salloc), so it
// comes last and counts only with more than one task.
constexpr Variables kLaunchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", false},
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", true},
    {"mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", true},
    {"srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", false},
};

int number(const char* name, const char* text) {
  const std::string_view view = text;
  int value = 0;
  const auto [end, code] = std::from_chars(view.data(), view.data() + view.size(), value);
  if (code != std::errc() || end != view.data() + view.size() || value < 0) {
    throw InputError(std::string("the environment variable ") + name + " must be a count, is \"" + text + "\"");
  }
  return value;
}

}  // namespace

std::optional<LauncherRank> launcher_rank(const std::function<const char*(const char*)>& lookup) {
  for (const Variables& names : kLaunchers) {
    const char* rank = lookup(names.rank);
    const char* size = lookup(names.size);
    if (rank == nullptr || size == nullptr) continue;
    LauncherRank found;
    found.launcher = names.launcher;
    found.mpi = names.mpi;
    found.rank = number(names.rank, rank);
    found.size = number(names.size, size);
    if (found.launcher == "srun" && found.size == 1) return std::nullopt;
    if (found.rank >= found.size) {
      throw InputError(std::string(names.rank) + " is " + rank + ", but " + names.size + " is " + size);
    }
    // Without a local rank all processes are taken to be on one host.
    const char* local = lookup(names.local_rank);
    found.local_rank = local != nullptr ? number(names.local_rank, local) : found.rank;
    if (const char* root = lookup("NCCL_COMM_ID")) {
      found.root = root;
    } else if (const char* address = lookup("MASTER_ADDR"); address != nullptr && lookup("MASTER_PORT") != nullptr) {
      // The launcher's own store listens on MASTER_PORT.
      found.root = std::string(address) + ":" + std::to_string(number("MASTER_PORT", lookup("MASTER_PORT")) + 1);
    }
    return found;
  }
  return std::nullopt;
}

}  // namespace dbo::runtime
