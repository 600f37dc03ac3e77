// MPI as host group, from a plug-in library that is loaded only under an MPI launcher: the programs themselves start
// where there is no MPI.
#pragma once

#include <memory>

#include "runtime/host_group.h"

namespace dbo::runtime {

/// The group of MPI_COMM_WORLD through `libdbo_mpi.so`, which lies in the library path, beside the program, in `../lib`
/// seen from it, or where a build leaves it; nullptr when there is none. Initialises MPI if nobody has.
std::unique_ptr<HostGroup> open_mpi_group();

/// What the plug-in exports as C functions, so that no MPI type crosses the boundary. All return 0 or an MPI error
/// code.
struct MpiPlugin {
  int (*start)(int* rank, int* size);
  /// All-gather of equal sizes. -1: a rank has not come for `limit_ms`; the exchange is still under way then, and no
  /// other may begin.
  int (*gather)(const void* mine, void* all, long bytes, long limit_ms);
  int (*abort)();
  int (*finish)();  ///< all ranks; a launcher takes a process that leaves without it for a crash
};
using MpiPluginEntry = MpiPlugin (*)();
inline constexpr char kMpiPluginEntry[] = "dbo_mpi_plugin_2";

}  // namespace dbo::runtime
