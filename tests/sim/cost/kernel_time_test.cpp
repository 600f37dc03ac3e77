#include "sim/cost/kernel_time.h"

#include <doctest/doctest.h>

#include "sim/base/error.h"
#include "sim/model/presets.h"

using namespace dbo;

namespace {

KernelWork gemm(double m, double k, double n) {
  KernelWork work;
  work.kind = KernelWork::Kind::Gemm;
  work.m = m;
  work.n = n;
  work.k = k;
  work.precision = Precision::Fp8;
  work.flops = 2 * m * n * k;
  work.weight_bytes = n * k;
  work.act_bytes = m * k + 2 * m * n;
  return work;
}

double seconds(const KernelWork& work, int sms = 132, std::string_view gpu = "h200-sxm") {
  return kernel_time(work, gpu_preset(gpu), default_factors().compute, sms).seconds;
}

}  // namespace

TEST_CASE("kernel time: tiles come in waves of the SMs") {
  // 4096 x 4096 in 128 x 256 tiles: 512 tiles, 3.9 waves of 132 SMs, so 4; on 128 SMs exactly 4.
  const Tiling whole = best_tiling({4096}, 4096, 132, 0);
  CHECK(whole.tiles / whole.waves <= 132);
  CHECK(whole.waves * 132 * whole.rows * whole.columns < 1.04 * 4096 * 4096);
  // One group of 10 rows and one of 70: 64-row tiles make 1 + 2.
  const Tiling groups = best_tiling({10, 70}, 256, 132, 0);
  CHECK(groups.tiles == 3 * 256.0 / groups.columns);
  CHECK(groups.rows == 64);
  // A group that has a row in every second draw is half a tile.
  CHECK(best_tiling({0.5, 0.5}, 16, 132, 0).tiles == 1);
}

TEST_CASE("kernel time: half a batch takes more than half the time, and no less than the weights do") {
  const double whole = seconds(gemm(128, 7168, 24576)), half = seconds(gemm(64, 7168, 24576));
  CHECK(half > 0.8 * whole);
  CHECK(half > 7168.0 * 24576 / 4.8e12);
  const double big = seconds(gemm(16384, 7168, 4096)), half_big = seconds(gemm(8192, 7168, 4096));
  CHECK(half_big > 0.5 * big);
  CHECK(half_big < 0.56 * big);
}

TEST_CASE("kernel time: fewer SMs never help; memory-bound kernels hardly notice the first they lose") {
  for (const KernelWork& work : {gemm(4096, 7168, 4096), gemm(64, 7168, 4096), gemm(700, 2048, 7168)}) {
    double last = 0;
    for (const int sms : {132, 124, 112, 108, 100, 66, 32, 8}) {
      const double now = seconds(work, sms);
      CHECK(now >= last - 1e-12);
      last = now;
    }
  }
  CHECK(seconds(gemm(64, 7168, 4096), 112) < 1.05 * seconds(gemm(64, 7168, 4096), 132));
  CHECK(seconds(gemm(8192, 7168, 4096), 66) > 1.8 * seconds(gemm(8192, 7168, 4096), 132));
}

TEST_CASE("kernel time: beside communication, output-heavy GEMMs suffer most") {
  const auto slowdown = [](const KernelWork& work) {
    const KernelTime time = kernel_time(work, gpu_preset("h800-sxm"), default_factors().compute, 108);
    return time.beside_seconds / time.seconds;
  };
  // The small-k, output-heavy ones of DeepSeek's prefill trace lost 25 to 46 %, the large-k ones up to 14 %.
  CHECK(slowdown(gemm(8192, 1536, 24576)) > 1.25);
  CHECK(slowdown(gemm(8192, 16384, 7168)) < 1.14);
  KernelWork norm;
  norm.act_bytes = 1e9;
  CHECK(slowdown(norm) == 1);
}

TEST_CASE("kernel time: a GPU without a unit for a precision runs the next wider one") {
  CHECK(seconds(gemm(8192, 4096, 4096), 108, "a100-sxm") > 4 * seconds(gemm(8192, 4096, 4096), 132, "h100-sxm"));
}

TEST_CASE("kernel time: every row of a published staircase of SM shares is close") {
  // 4096 x 4096 x 7168, us on n SMs of an H200 as measured with cuBLAS in bf16: the shape, not the size, is compared.
  const std::pair<int, double> measured[] = {{132, 268}, {124, 300}, {116, 312}, {112, 337},
                                             {108, 337}, {100, 343}, {66, 529},  {32, 1051}};
  KernelWork work = gemm(4096, 7168, 4096);
  work.precision = Precision::Bf16;
  const double base = seconds(work, 132);
  for (const auto& row : measured) {
    const int sms = row.first;
    CAPTURE(sms);
    const double ratio = seconds(work, sms) / base / (row.second / 268);
    CHECK(ratio > 0.85);
    CHECK(ratio < 1.15);
  }
}

TEST_CASE("factors: every factor has a value and a source") {
  CHECK(default_factors().compute.hbm > 0.5);
  CHECK(default_factors().transport(Transport::LsaLl).dispatch.sm_near_bytes_per_s == 44e9);
  CHECK_THROWS_WITH_AS(
      read_factors(JsonRef(json_document(
          std::string_view(R"({"about": "x", "compute": {"hbm": {"value": 1, "source": ""}}})"), "f.json"))),
      "f.json: /compute/hbm/source: must say where the value comes from", InputError);
}
