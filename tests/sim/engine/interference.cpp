#include "tests/sim/engine/interference.h"

#include <algorithm>

#include "sim/cost/op_price.h"
#include "sim/model/presets.h"
#include "tests/sim/engine/lane_plan.h"

namespace dbo::published {
namespace {

constexpr int kOps = 40;  // long enough that heads and tails of the chains do not count

MachineSpec h200() {
  return {.gpu = gpu_preset("h200-sxm"), .fabric = fabric_preset("cx7-400g"), .host = {}};
}

OpCost gemm_cost(double m, double k, double n, int sms) {
  KernelWork work;
  // cuBLAS splits the sums of a GEMM of few rows over all SMs, so that it streams its weights; DeepGEMM, whose tiles
  // Gemm counts, does not.
  constexpr double kFewRows = 64;
  work.kind = m > kFewRows ? KernelWork::Kind::Gemm : KernelWork::Kind::Memory;
  work.precision = Precision::Bf16;
  work.m = m;
  work.n = n;
  work.k = k;
  work.flops = 2 * m * n * k;
  work.weight_bytes = n * k * 2;
  work.act_bytes = (m * k + m * n) * 2;
  const MachineSpec machine = h200();
  return price_kernels({{work, kernel_time(work, machine.gpu, machine.rates().compute, sms)}}, machine, sms);
}

/// One push of `bytes` each way between two ranks.
OpCost push_cost(double bytes, int blocks, int blocks_per_sm) {
  static const ModelShape shape = model_preset("deepseek-v3");
  RankTraffic traffic;
  traffic.tokens = bytes / dispatch_bytes(shape);
  traffic.ranks_out_near = traffic.ranks_in_near = traffic.tokens;
  RoutedLoad load;
  load.ranks = {traffic, traffic};
  OpCost cost = price_exchange(OpKind::D, make_exchange(Transport::LsaHt, shape, 2, load), 0, h200(), blocks);
  cost.demand.blocks_per_sm = blocks_per_sm;
  return cost;
}

/// The copies alone: packing and unpacking are not part of what was measured.
OpCost copy_cost(double bytes) {
  static const ModelShape shape = model_preset("deepseek-v3");
  RankTraffic traffic;
  traffic.tokens = bytes / dispatch_bytes(shape);
  RoutedLoad load;
  load.ranks = {traffic, traffic};
  const Exchange exchange = make_exchange(Transport::CopyEngine, shape, 2, load);
  const OpCost recv = price_exchange(OpKind::DRecv, exchange, 0, h200(), 132);
  OpCost cost;
  cost.time = recv.wire;
  cost.demand.hbm_bytes = recv.wire_traffic.hbm_bytes;
  cost.demand.link_bytes = recv.wire_traffic.link_bytes;
  return cost;
}

/// When the first of two GPUs ends its chains of both costs beside each other; of one when the other is null. The
/// second GPU's GEMMs begin later by `phase` of one.
std::int64_t run(const OpCost* gemm, const OpCost* comm, int comms, SmControl control, int comm_sms, double phase = 0) {
  std::vector<fakes::LaneOp> ops = {{"late", OpKind::A0, kComputeLane, 0, {}, 0}};
  for (int i = 0; gemm != nullptr && i < kOps; ++i)
    ops.push_back({"G" + std::to_string(i), OpKind::MLP, kComputeLane, 0, {}, 0});
  for (int i = 0; comm != nullptr && i < comms; ++i)
    ops.push_back({"D" + std::to_string(i), OpKind::D, kCommLane, 0, {}, 0});
  constexpr int kGpus = 2;
  fakes::LanePlan plan = fakes::lane_plan(ops, h200().shared_rates(), kGpus);
  plan.plan.sm = {control, comm_sms, 132 - comm_sms, 0};
  for (int gpu = 0; gpu < kGpus; ++gpu)
    for (OpId op = 1; op < plan.plan.ops.size(); ++op)
      plan.costs.at(gpu, 0, 0, op) = plan.plan.ops[op].kind == OpKind::D ? *comm : *gemm;
  if (gemm != nullptr)
    plan.cost("late", 1).time = Ns{static_cast<std::int64_t>(phase * static_cast<double>(gemm->time.count()))};
  return run_engine(plan.plan, plan.costs).step_ns.front();
}

struct Shape {
  const char* name;
  double m, k, n;
  /// Thread blocks of the kernel that cuBLAS takes when it counts on the whole machine, where another figure tells: in
  /// green contexts of 124, 116 and 108 SMs the compute-bound GEMM, not told of them, took 1.5 times as long alone, as
  /// two waves that become three. 0: as the model has it.
  int untold_tiles = 0;
  /// Blocks of a kernel that leaves SMs free even so: one an SM, as CUPTI shows it on an H200.
  int blocks = 132;
};

constexpr double kPush = 64.0 * 1024 * 1024;
/// What was measured pushed with 512 threads of 8 x 16 bytes; compiled, such a kernel has 32 registers, and four of its
/// blocks fit an SM.
constexpr int kBlocksPerSm = 4;

/// `gemm_sms`: what the GEMM is made for.
double share_of_gain(const Shape& shape, const OpCost& comm, int gemm_sms, SmControl control, int comm_sms,
                     double phase = 0) {
  OpCost whole = gemm_cost(shape.m, shape.k, shape.n, shape.blocks),
         less = gemm_cost(shape.m, shape.k, shape.n, std::min(shape.blocks, gemm_sms));
  if (shape.untold_tiles > 0) whole.demand.tiles = shape.untold_tiles;
  if (gemm_sms == 132) less = whole;
  const std::int64_t gemm_alone = run(&whole, nullptr, 0, SmControl::None, 0);
  const int comms = std::max(static_cast<int>(gemm_alone / comm.time.count()), 1);
  const std::int64_t comm_alone = run(nullptr, &comm, comms, SmControl::None, 0);
  const std::int64_t pair = run(&less, &comm, comms, control, comm_sms, phase);
  const auto sum = static_cast<double>(gemm_alone + comm_alone),
             best = static_cast<double>(std::max(gemm_alone, comm_alone));
  return (sum - static_cast<double>(pair)) / (sum - best);
}

InterferenceRow measure(const Shape& shape, const std::string& engine, const OpCost& comm, int gemm_sms,
                        SmControl control, int comm_sms, double low, double high) {
  return {shape.name, engine, low, high, share_of_gain(shape, comm, gemm_sms, control, comm_sms)};
}

constexpr Shape kComputeBound{"compute-bound 4096x4096x7168", 4096, 7168, 4096, 256},
    kOutputHeavy{"output-heavy 8192x7168x2048", 8192, 2048, 7168},
    kMemoryBound{"memory-bound 64x4096x7168", 64, 7168, 4096, 0, 128};

}  // namespace

double uncontrolled_share(bool compute_bound, int blocks, int blocks_per_sm, double phase) {
  return share_of_gain(compute_bound ? kComputeBound : kOutputHeavy, push_cost(kPush, blocks, blocks_per_sm), 132,
                       SmControl::None, 0, phase);
}

std::vector<InterferenceRow> interference_rows() {
  struct Published {
    Shape shape;
    double copy[2], none[3], limit[3], green[3][2], untold[3];
  };
  // Two H200 over NVLink, cuBLAS in bf16 on random data; 8, 16 and 24 blocks.
  const Published all[] = {{kComputeBound,
                            {0.89, 0.91},
                            {0.15, 0.19, 0.41},
                            {0.91, 0.82, 0.89},
                            {{0.84, 0.90}, {0.50, 0.50}, {0.32, 0.32}},
                            {0.65, 0.62, 0.63}},
                           {kOutputHeavy,
                            {1, 1},
                            {0.41, 0.35, 0.49},
                            {0.86, 0.98, 1},
                            {{0.87, 0.87}, {0.86, 0.86}, {0.90, 0.90}},
                            {0.87, 0.95, 0.94}},
                           {kMemoryBound,
                            {0.87, 0.87},
                            {0.42, 0.44, 0.49},
                            {0.50, 0.46, 0.39},
                            {{0.56, 0.56}, {0.53, 0.53}, {0.28, 0.28}},
                            {0.46, 0.42, 0.40}}};
  std::vector<InterferenceRow> rows;
  for (const Published& p : all) {
    rows.push_back(measure(p.shape, "copy engine", copy_cost(kPush), 132, SmControl::None, 0, p.copy[0], p.copy[1]));
    for (int i = 0; i < 3; ++i) {
      const int blocks = 8 * (i + 1);
      const OpCost push = push_cost(kPush, blocks, kBlocksPerSm);
      const std::string name = std::to_string(blocks) + " blocks";
      rows.push_back(measure(p.shape, name + ", no control", push, 132, SmControl::None, 0, p.none[i], p.none[i]));
      rows.push_back(
          measure(p.shape, name + ", limit", push, 132 - blocks, SmControl::Limit, blocks, p.limit[i], p.limit[i]));
      rows.push_back(measure(p.shape, name + ", green context", push, 132 - blocks, SmControl::GreenContext, blocks,
                             p.green[i][0], p.green[i][1]));
      rows.push_back(measure(p.shape, name + ", green context, GEMM not told", push, 132, SmControl::GreenContext,
                             blocks, p.untold[i], p.untold[i]));
    }
  }
  return rows;
}

std::vector<CopyRow> copy_rows() {
  constexpr double kKiB = 1024, kMiB = 1024 * kKiB;
  std::vector<CopyRow> rows = {{256 * kKiB, 12, 16, 0},
                               {kMiB, 14, 19, 0},
                               {4 * kMiB, 24, 27, 0},
                               {16 * kMiB, 57, 61, 0},
                               {58 * kMiB, 169, 174, 0}};
  for (CopyRow& row : rows) row.predicted_us = static_cast<double>(copy_cost(row.bytes).time.count()) / 1000;
  return rows;
}

}  // namespace dbo::published
