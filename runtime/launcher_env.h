// Which rank this process is, when mpirun, srun or torchrun started it.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace dbo::runtime {

struct LauncherRank {
  std::string launcher;  ///< "torchrun", "mpirun", "srun"
  int rank = 0;
  int size = 1;
  int local_rank = 0;  ///< on this host; picks the GPU
  /// host:port of rank 0 where the launcher tells, else empty.
  std::string root;
  bool mpi = false;  ///< an MPI library can be initialised
};

/// Looks at the variables of torchrun (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT), Open MPI
/// (OMPI_COMM_WORLD_*), MPICH and Intel MPI (PMI_*, MPI_LOCALRANKID) and Slurm (SLURM_PROCID, ...), in this order;
/// nothing when the process was started alone. NCCL_COMM_ID gives `root` where the launcher does not. `lookup` is
/// getenv. Throws InputError for a variable that is no number or contradicts another.
std::optional<LauncherRank> launcher_rank(const std::function<const char*(const char*)>& lookup);

}  // namespace dbo::runtime
