// The host group over MPI, one process a rank: gathers of unequal texts, and a rank that does not come. Run by
// mpi_group_test.py under mpirun; no GPU needed.
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>

#include "runtime/mpi_group.h"
#include "sim/base/error.h"

using namespace dbo;
using namespace dbo::runtime;

namespace {

/// What rank `rank` says in round `round`: texts of all lengths from none on.
std::string text_of(int rank, int round) {
  return std::string(static_cast<std::size_t>(rank * 700 + round % 3), static_cast<char>('a' + round % 26));
}

int check_gathers(HostGroup& group) {
  for (int round = 0; round < 200; ++round) {
    const auto texts = group.gather(text_of(group.rank(), round));
    if (texts.size() != static_cast<std::size_t>(group.size())) return 1;
    for (int rank = 0; rank < group.size(); ++rank)
      if (texts[static_cast<std::size_t>(rank)] != text_of(rank, round)) return 1;
  }
  group.barrier();
  return 0;
}

/// The last rank stays away: the others must notice within the limit, and end all with 3.
int miss_last(HostGroup& group) {
  group.barrier();
  group.limit(Ns{300'000'000});
  if (group.rank() + 1 == group.size()) {
    std::this_thread::sleep_for(std::chrono::seconds(60));
    return 1;
  }
  try {
    group.barrier();
  } catch (const NcclError& error) {
    std::printf("missed: %s\n", error.what());
    std::fflush(stdout);
    group.abort();
  }
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  const auto group = open_mpi_group();
  if (group == nullptr) {
    std::printf("no libdbo_mpi.so\n");
    return 77;
  }
  return argc > 1 && std::string(argv[1]) == "miss" ? miss_last(*group) : check_gathers(*group);
}
