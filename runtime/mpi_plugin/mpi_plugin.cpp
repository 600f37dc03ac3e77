// The plug-in behind runtime/mpi_group.h: the only file that includes MPI.
// The C++ bindings, which MPI has dropped, do not compile without warnings.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <chrono>
#include <thread>

#include "runtime/mpi_group.h"

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

int gather(const void* mine, void* all, long bytes, long limit_ms) {
  using Clock = std::chrono::steady_clock;
  // Not the blocking call, which a rank that is gone would never end. Ranks that begin a step together should leave
  // together, so the first looks come without a pause.
  constexpr std::chrono::microseconds kAwake{200};
  MPI_Request request = MPI_REQUEST_NULL;
  int code = MPI_Iallgather(mine, static_cast<int>(bytes), MPI_BYTE, all, static_cast<int>(bytes), MPI_BYTE,
                            MPI_COMM_WORLD, &request);
  const auto begin = Clock::now();
  for (int done = 0; code == MPI_SUCCESS;) {
    code = MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (done != 0) break;
    const auto passed = Clock::now() - begin;
    if (passed > std::chrono::milliseconds(limit_ms)) return -1;
    if (passed > kAwake) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return code;
}

int abort_all() {
  return MPI_Abort(MPI_COMM_WORLD, 3);
}

int finish() {
  int over = 0;
  const int code = MPI_Finalized(&over);
  return code == MPI_SUCCESS && over == 0 ? MPI_Finalize() : code;
}

}  // namespace

extern "C" dbo::runtime::MpiPlugin dbo_mpi_plugin_2() {
  return {start, gather, abort_all, finish};
}
