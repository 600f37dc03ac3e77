#include "runtime/launcher_env.h"

#include <doctest/doctest.h>

#include <map>

#include "sim/base/error.h"

using namespace dbo;
using namespace dbo::runtime;

namespace {

std::optional<LauncherRank> with(const std::map<std::string, std::string>& variables) {
  return launcher_rank([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

}  // namespace

TEST_CASE("launcher: a process started alone has no rank, one task of srun neither") {
  CHECK(!with({}));
  CHECK(!with({{"RANK", "0"}}));
  CHECK(!with({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}}));
}

TEST_CASE("launcher: torchrun tells where rank 0 is, one port above its own store") {
  const auto rank = with(
      {{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}, {"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "29500"}});
  REQUIRE(rank.has_value());
  CHECK(rank->launcher == "torchrun");
  CHECK(rank->rank == 3);
  CHECK(rank->size == 4);
  CHECK(rank->local_rank == 1);
  CHECK(rank->root == "10.0.0.1:29501");
  CHECK(!rank->mpi);
}

TEST_CASE("launcher: NCCL_COMM_ID wins over what the launcher says") {
  const auto rank = with({{"RANK", "0"},
                          {"WORLD_SIZE", "2"},
                          {"MASTER_ADDR", "a"},
                          {"MASTER_PORT", "1"},
                          {"NCCL_COMM_ID", "127.0.0.1:5000"}});
  REQUIRE(rank.has_value());
  CHECK(rank->root == "127.0.0.1:5000");
  CHECK(rank->local_rank == 0);
}

TEST_CASE("launcher: Open MPI, MPICH and srun are told apart") {
  const auto open_mpi =
      with({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}});
  REQUIRE(open_mpi.has_value());
  CHECK(open_mpi->launcher == "mpirun");
  CHECK(open_mpi->mpi);
  CHECK(open_mpi->root.empty());
  const auto mpich = with({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}});
  REQUIRE(mpich.has_value());
  CHECK(mpich->mpi);
  CHECK(mpich->local_rank == 1);
  const auto slurm = with({{"SLURM_PROCID", "5"}, {"SLURM_NTASKS", "8"}, {"SLURM_LOCALID", "1"}});
  REQUIRE(slurm.has_value());
  CHECK(slurm->launcher == "srun");
  CHECK(slurm->rank == 5);
  CHECK(slurm->local_rank == 1);
}

TEST_CASE("launcher: what is no number, or contradicts itself, is an error that names the variable") {
  CHECK_THROWS_WITH_AS(with({{"RANK", "x1"}, {"WORLD_SIZE", "2"}}),
                       "the environment variable RANK must be a count, is \"x1\"", InputError);
  CHECK_THROWS_WITH_AS(with({{"RANK", "2"}, {"WORLD_SIZE", "2"}}), "RANK is 2, but WORLD_SIZE is 2", InputError);
}
