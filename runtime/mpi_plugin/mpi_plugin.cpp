// The plug-in behind runtime/cuda/mpi_group.h: the only file that includes MPI.
#include <mpi.h>

#include "runtime/cuda/mpi_group.h"

namespace {

int start(int* rank, int* size) {
  int running = 0;
  int code = MPI_Initialized(&running);
  if (code == MPI_SUCCESS && running == 0) {
    int provided = 0;
    code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
  }
  if (code == MPI_SUCCESS) code = MPI_Comm_rank(MPI_COMM_WORLD, rank);
  if (code == MPI_SUCCESS) code = MPI_Comm_size(MPI_COMM_WORLD, size);
  return code;
}

int gather(const void* mine, void* all, long bytes) {
  return MPI_Allgather(mine, static_cast<int>(bytes), MPI_BYTE, all, static_cast<int>(bytes), MPI_BYTE, MPI_COMM_WORLD);
}

int abort_all() {
  return MPI_Abort(MPI_COMM_WORLD, 3);
}

}  // namespace

extern "C" dbo::runtime::MpiPlugin dbo_mpi_plugin_1() {
  return {start, gather, abort_all};
}
