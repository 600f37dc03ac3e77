// dbo-gpu replay: a plan on one or more GPUs with stand-in kernels.
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "runtime/cuda/moe_table.h"
#include "runtime/cuda/nccl_comm.h"
#include "runtime/cuda/process.h"
#include "runtime/cuda/rank_replay.h"
#include "runtime/launcher_env.h"
#include "sim/base/error.h"
#include "sim/base/files.h"
#include "sim/base/hash.h"
#include "sim/base/json.h"
#include "sim/cost/analytical.h"
#include "sim/cost/fixed.h"
#include "sim/cost/machine.h"
#include "sim/model/presets.h"
#include "sim/plan/plan_json.h"
#include "tools/dbo_gpu.h"
#include "tools/replay_prediction.h"
#include "traces/check_order.h"
#include "traces/chrome_writer.h"
#include "validate/cuda/calibrate.h"

namespace dbo {
namespace {

using runtime::HostGroup;
using runtime::LaneGaps;
using runtime::RankReplay;
using runtime::RankTimes;
using runtime::Spread;
using runtime::StandInWork;
using runtime::TraceMode;

/// Blocks, one an SM, of a stand-in. Given durations know no contention: what would wait for SMs that the other lane's
/// ops hold would last longer than it was given. So compute leaves the comm kernels' SMs alone, the un-split step's
/// too, unless the plan lets all share them.
int blocks_of(const Plan& plan, SmPool pool, int gpu_sms) {
  const int comm = plan.sm.comm > 0 ? std::min(plan.sm.comm, gpu_sms - 1) : 1;
  if (pool == SmPool::Comm) return comm;
  if (pool == SmPool::None) return 1;
  const bool comm_kernels =
      std::any_of(plan.ops.begin(), plan.ops.end(), [](const OpDef& op) { return op.sms == SmPool::Comm; });
  const int compute = plan.sm.compute > 0 ? std::min(plan.sm.compute, gpu_sms) : gpu_sms;
  if (plan.sm.control == SmControl::None && pool == SmPool::Compute) return gpu_sms;
  return comm_kernels ? std::min(compute, gpu_sms - comm) : compute;
}

/// The stand-ins of one rank. An op that takes no time and tells nobody anything is not launched at all.
std::vector<StandInWork> stand_ins(const Plan& plan, const CostTable& costs, int rank, int gpu_sms,
                                   const ReplayCommand& command) {
  const Linear linear = linearise(plan, plan.class_of(rank));
  const int group = costs.group_of_rank()[static_cast<std::size_t>(rank)];
  std::vector<StandInWork> work;
  for (std::size_t i = 0; i < linear.ops.size(); ++i) {
    const LinearOp& op = linear.ops[i];
    const OpCost& cost = costs.at(group, costs.layer_class(op.layer), op.ubatch, op.op);
    StandInWork w;
    w.time = i < costs.by_plan_op.size() ? costs.by_plan_op[i] : cost.time;
    w.wire = cost.wire;
    w.notify = cost.notify;
    // A send or receive without a time of its own only stamps and holds: one small block.
    w.whole_sm = w.time > Ns{};
    w.blocks = w.whole_sm ? blocks_of(plan, plan.op(op.op).sms, gpu_sms) : 1;
    const OpKind kind = plan.op(op.op).kind;
    if (w.whole_sm && !is_recv(kind))
      w.copy_bytes = is_send(kind) || is_collective(kind) ? command.send_bytes : command.work_bytes;
    work.push_back(w);
  }
  return work;
}

/// By plan_op of the plan's first rank: how long wires to and from ranks that are not here take over the fabric.
std::vector<Ns> emulated_wires(const Plan& plan, const std::string& gpu, const std::string& fabric) {
  if (!plan.shape.has_dims()) throw InputError("--fabric: the plan's model has no dimensions to work wires out from");
  const std::string preset = validate::preset_of_device(gpu);
  if (preset.empty()) throw InputError("--fabric: no preset describes the links of a " + gpu);
  const CostTable costs = analytical_costs(plan, MachineSpec{gpu_preset(preset), fabric_preset(fabric), {}});
  const Linear linear = linearise(plan, plan.class_of(0));
  std::vector<Ns> wires;
  for (const LinearOp& op : linear.ops) {
    const OpKind kind = plan.op(op.op).kind;
    const OpCost& cost = costs.at(costs.group_of_rank().front(), costs.layer_class(op.layer), op.ubatch, op.op);
    wires.push_back(is_recv(kind) ? cost.wire : is_collective(kind) ? cost.time : Ns{});
  }
  return wires;
}

bool blocks_host(const Linear& linear) {
  return std::any_of(linear.host.begin(), linear.host.end(),
                     [](const HostStep& step) { return step.verb == Verb::HostWait; });
}

/// One way of running, measured on one rank.
struct Measured {
  explicit Measured(std::size_t count) : ops(count) {}

  std::vector<Ns> steps;  ///< by the ops' own times; by events where nothing tells them
  std::vector<Ns> events, host;
  std::vector<std::uint64_t> outputs;  ///< hash of each step's result; real kernels only
  OpMedians ops;
  LaneGaps gaps;
  RankTimes last;
};

/// What the ranks share while they run; filled by rank 0's thread where it says so.
struct Session {
  const Plan& plan;
  const ReplayCommand& command;
  std::vector<std::vector<StandInWork>> work;  ///< by rank; empty: real kernels
  std::vector<Ns> wires;                       ///< real kernels: MoeOptions::wires
  bool processes;                              ///< a process per rank: nobody here stops the others
  runtime::HangGuard guard;
  std::unique_ptr<runtime::CuptiTracer> tracer;  ///< of the process; made by its first rank between two barriers
  std::mutex mutex;
  std::map<int, RankReplay*> live;
};

/// What is known of the last step: stamps, else events, else nothing (CUPTI's records are read once, at the end).
std::optional<RankTimes> step_times(const RankReplay& replay, TraceMode mode) {
  if (replay.has_stamps()) return replay.stamp_times();
  if (mode == TraceMode::Light) return replay.light_times();
  return std::nullopt;
}

Measured measure(RankReplay& replay, const Plan& plan, const ReplayCommand& command, bool graph, TraceMode mode,
                 runtime::CuptiTracer* tracer) {
  constexpr runtime::GraphKey kKey{};
  replay.set_trace(mode, tracer);
  if (graph) replay.capture(kKey);
  const auto run = [&] { graph ? static_cast<void>(replay.run_graph(kKey)) : replay.run_eager(); };
  for (std::int64_t i = 0; i < command.warmup; ++i) run();
  Measured measured(replay.linear().ops.size());
  const auto* real = dynamic_cast<const runtime::MoeTable*>(&replay.source());
  for (std::int64_t i = 0; i < command.iterations; ++i) {
    // What came before the last step is not wanted; all ranks clear before the barrier that begins it.
    if (tracer != nullptr && i + 1 == command.iterations) tracer->clear();
    run();
    replay.check_arrivals();
    measured.events.push_back(replay.event_time());
    measured.host.push_back(replay.host_time());
    if (real != nullptr) measured.outputs.push_back(real->output_hash());
    const std::optional<RankTimes> times = step_times(replay, mode);
    measured.steps.push_back(times ? runtime::step_time(*times) : replay.event_time());
    if (!times) continue;
    const LaneGaps gaps = runtime::lane_gaps(plan, replay.linear(), *times);
    measured.gaps.same_lane.insert(measured.gaps.same_lane.end(), gaps.same_lane.begin(), gaps.same_lane.end());
    measured.gaps.cross_lane.insert(measured.gaps.cross_lane.end(), gaps.cross_lane.begin(), gaps.cross_lane.end());
    measured.ops.add(*times);
    measured.last = *times;
  }
  if (mode == TraceMode::Light) measured.last = replay.light_times();
  if (mode == TraceMode::Full) measured.last = replay.full_times(*tracer);
  return measured;
}

std::string us(Ns time) {
  return us_text(time.count());
}

std::string spread_text(const std::vector<Ns>& values) {
  const Spread s = runtime::spread_of(values);
  return fmt::format("{:>10} us  ({} .. {})", us(s.median), us(s.p10), us(s.p90));
}

void print_ops(const Plan& plan, const Linear& linear, const std::vector<StandInWork>& work, const Measured& measured,
               TraceMode mode) {
  // `work` is empty for real kernels: nothing was given. Stamps know the SMs, CUPTI the grid, events neither.
  const char* sms_head = mode == TraceMode::Stamps ? "SMs" : mode == TraceMode::Full ? "SMs at most" : "";
  fmt::print("  {:<8} {:>6} {:>12} {:>12} {:>12} {:>12}\n", "op", "count", "given us", "median us", "p90 us", sms_head);
  for (OpId op = 0; op < plan.ops.size(); ++op) {
    std::vector<Ns> given, all;
    int sms = 0;
    for (std::size_t i = 0; i < linear.ops.size(); ++i) {
      if (linear.ops[i].op != op) continue;
      given.push_back(work.empty() ? Ns{} : work[i].time);
      if (i < measured.last.ops.size()) sms = std::max(sms, measured.last.ops[i].sms);
      all.insert(all.end(), measured.ops.lengths()[i].begin(), measured.ops.lengths()[i].end());
    }
    if (all.empty()) continue;
    const Spread s = runtime::spread_of(all);
    fmt::print("  {:<8} {:>6} {:>12} {:>12} {:>12} {:>12}\n", plan.op(op).name, given.size(),
               us(runtime::spread_of(given).median), us(s.median), us(s.p90), sms > 0 ? std::to_string(sms) : "");
  }
}

Json spread_json(const std::vector<Ns>& values) {
  const Spread s = runtime::spread_of(values);
  Json json = Json::object();
  json.set("median_ns", s.median.count());
  json.set("p10_ns", s.p10.count());
  json.set("p90_ns", s.p90.count());
  json.set("count", s.count);
  return json;
}

/// Prints and writes what rank 0 knows of one way of running; returns the number of findings: of its order, and whether
/// the step is further from the predicted one than it may be.
std::size_t report(Session& session, HostGroup& group, RankReplay& replay, const Measured& measured, bool graph,
                   const CostTable* costs, TraceMode mode, Json& out) {
  const std::vector<std::string> all = group.gather(runtime::encode_times(measured.last));
  if (group.rank() != 0) return 0;
  const Plan& plan = session.plan;
  std::vector<RankTimes> ranks;
  std::vector<Linear> orders;
  for (const std::string& text : all) {
    const RankTimes times = runtime::decode_times(text);
    // Ranks that play one and the same rank of the plan: the first one stands for it.
    if (ranks.empty() || times.rank != ranks.back().rank) ranks.push_back(times);
  }
  for (const RankTimes& rank : ranks) orders.push_back(linearise(plan, plan.class_of(rank.rank)));
  std::vector<const Linear*> order_pointers;
  for (const Linear& order : orders) order_pointers.push_back(&order);
  Trace trace = runtime::measured_trace(plan, order_pointers, ranks);
  OrderOptions options;
  // Stamps are taken inside the kernels; events and CUPTI stand outside and have their own granularity.
  options.lane_slack = Ns{mode == TraceMode::Stamps ? static_cast<std::int64_t>(replay.timer().tick_ns) : 2'000};
  std::int64_t residual = 0;
  for (const RankTimes& rank : ranks) residual = std::max(residual, rank.residual_ns);
  options.rank_slack = options.lane_slack + Ns{residual};
  const auto findings = check_order(plan, trace, options);
  PredictedStep prediction;
  if (costs != nullptr) {
    prediction = predict_step(plan, *costs, replay.plan_rank(), graph, measured.gaps, replay.launch_cost(),
                              replay.linear(), measured.ops.lengths());
  }
  const Ns predicted = prediction.step;
  const Ns median = runtime::spread_of(measured.steps).median;
  const double error = predicted.count() == 0 ? 0
                                              : 100.0 * static_cast<double>(median.count() - predicted.count()) /
                                                    static_cast<double>(predicted.count());
  const std::string way = fmt::format("{}, {} trace", graph ? "graph" : "eager",
                                      mode == TraceMode::Stamps  ? "stamps"
                                      : mode == TraceMode::Light ? "light"
                                                                 : "full");
  fmt::print("\n{}\n", way);
  const bool told = !measured.last.ops.empty();
  fmt::print("  step (ops)      {}\n", spread_text(measured.steps));
  fmt::print("  step (events)   {}\n", spread_text(measured.events));
  fmt::print("  host time       {}\n", spread_text(measured.host));
  fmt::print("  gap same lane   {}\n", spread_text(measured.gaps.same_lane));
  fmt::print("  gap cross lane  {}\n", spread_text(measured.gaps.cross_lane));
  // What a trace costs is in the gaps, but not only there: the bound holds for steps that nothing watches.
  const double tolerance = session.command.tolerance;
  const bool missed = costs != nullptr && mode == TraceMode::Stamps && tolerance > 0 && std::abs(error) > tolerance;
  if (costs != nullptr)
    fmt::print("  predicted       {:>10} us  with these gaps: measured {:+.2f} %{}\n", us(predicted), error,
               missed ? fmt::format(", outside {:g} %", tolerance) : "");
  fmt::print("  order           {}\n", !told              ? "not traced"
                                       : findings.empty() ? "as planned"
                                                          : fmt::format("{} findings", findings.size()));
  for (std::size_t i = 0; i < std::min<std::size_t>(findings.size(), 10); ++i)
    fmt::print("    {}: {}\n", finding_name(findings[i].kind), findings[i].text);
  print_ops(
      plan, replay.linear(),
      session.work.empty() ? std::vector<StandInWork>{} : session.work[static_cast<std::size_t>(replay.plan_rank())],
      measured, mode);
  if (costs != nullptr) print_layer(plan, replay.linear(), prediction, measured.ops.medians());
  if (mode == TraceMode::Full && session.tracer != nullptr) {
    for (const auto& [name, count] : session.tracer->unclaimed())
      fmt::print("  CUPTI records of no op: {} x {}\n", count, name);
  }

  Json json = Json::object();
  json.set("way", way);
  json.set("step", spread_json(measured.steps));
  json.set("step_events", spread_json(measured.events));
  json.set("host", spread_json(measured.host));
  json.set("gap_same_lane", spread_json(measured.gaps.same_lane));
  json.set("gap_cross_lane", spread_json(measured.gaps.cross_lane));
  json.set("predicted_ns", predicted.count());
  json.set("order_findings", static_cast<std::int64_t>(findings.size()));
  out.push(std::move(json));
  if (!session.command.out.empty()) {
    const runtime::GpuInfo gpu = runtime::list_gpus()[0];
    const runtime::Versions v = runtime::versions();
    trace.metadata.set("device", gpu.name);
    trace.metadata.set("driver", runtime::version_text(v.driver));
    trace.metadata.set("cuda", runtime::version_text(v.runtime));
    trace.metadata.set("nccl", runtime::nccl_version_text(v.nccl));
    trace.metadata.set("sm_clock_cycles_per_1024_ns", static_cast<std::int64_t>(replay.timer().cycles_per_1024_ns));
    trace.metadata.set("way", way);
    write_chrome_trace(session.command.out + (graph ? "/graph" : "/eager") + ".measured.trace.json", trace);
  }
  return findings.size() + (missed ? 1 : 0);
}

TraceMode trace_mode(const std::string& name, bool stand_ins) {
  if (name == "light" || (name.empty() && !stand_ins)) return TraceMode::Light;
  if (name == "stamps" && !stand_ins) throw InputError("real kernels do not stamp: --trace light or full");
  return name == "full" ? TraceMode::Full : TraceMode::Stamps;
}

/// One rank in the list of those to stop when another fails.
class Live {
 public:
  Live(Session& session, int rank, RankReplay* replay) : session_(session), rank_(rank) {
    const std::lock_guard lock(session_.mutex);
    session_.live[rank_] = replay;
  }
  ~Live() {
    const std::lock_guard lock(session_.mutex);
    session_.live.erase(rank_);
  }
  Live(const Live&) = delete;
  Live& operator=(const Live&) = delete;

 private:
  Session& session_;
  int rank_;
};

void print_setup(const Session& session, const RankReplay& replay) {
  fmt::print("# timer tick {} ns, SM clock {:.0f} MHz, {} ops a step, lanes: compute {} SMs, comm {} SMs{}\n",
             replay.timer().tick_ns, replay.timer().cycles_per_1024_ns / 1.024, replay.linear().ops.size(),
             replay.compute_sms() > 0 ? replay.compute_sms() : session.plan.sm.compute,
             replay.comm_sms() > 0 ? replay.comm_sms() : session.plan.sm.comm,
             replay.comm_sms() > 0 ? " (green contexts)" : "");
  for (std::size_t r = 1; r < replay.clocks().size(); ++r)
    fmt::print("# clock of rank {}: {:+} ns, residual {} ns\n", r, replay.clocks()[r].offset_ns,
               replay.clocks()[r].residual_ns);
  if (const auto* real = dynamic_cast<const runtime::MoeTable*>(&replay.source())) fmt::print("# {}\n", real->how());
  std::fflush(stdout);
}

/// Eager, graph and repeats of one plan must give the same bits; returns the number of ranks on which they did not.
std::size_t check_outputs(HostGroup& group, const std::vector<std::uint64_t>& outputs) {
  if (outputs.empty()) return 0;
  const bool same = std::all_of(outputs.begin(), outputs.end(), [&](std::uint64_t hash) { return hash == outputs[0]; });
  const std::vector<std::string> all = group.gather(same ? hash_text(outputs[0]) : "-");
  if (group.rank() != 0) return 0;
  std::size_t differing = 0;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    fmt::print("outputs of rank {}: {}\n", rank, all[rank] == "-" ? "DIFFER from step to step" : all[rank]);
    differing += all[rank] == "-" ? 1 : 0;
  }
  return differing;
}

/// All the ways of running, after set-up; returns the number of findings. `costs` null: real kernels.
std::size_t run_ways(Session& session, HostGroup& group, RankReplay& replay, bool leads_process, const CostTable* costs,
                     const std::vector<bool>& ways, Json& out) {
  const Plan& plan = session.plan;
  std::size_t findings = 0;
  std::vector<Ns> plain;
  std::vector<std::uint64_t> outputs;
  const auto run = [&](bool graph, TraceMode mode) {
    const Measured measured = measure(replay, plan, session.command, graph, mode, session.tracer.get());
    findings += report(session, group, replay, measured, graph, costs, mode, out);
    outputs.insert(outputs.end(), measured.outputs.begin(), measured.outputs.end());
    return runtime::spread_of(measured.events).median;
  };
  for (const bool graph : ways) plain.push_back(run(graph, TraceMode::Stamps));
  const TraceMode mode = trace_mode(session.command.trace, costs != nullptr);
  if (mode != TraceMode::Stamps) {
    group.barrier();
    // Once per process, after the GPUs started and before the graphs that are traced are captured.
    if (mode == TraceMode::Full && leads_process) session.tracer = std::make_unique<runtime::CuptiTracer>();
    group.barrier();
    for (std::size_t i = 0; i < ways.size(); ++i) {
      const Ns traced = run(ways[i], mode);
      if (group.rank() == 0) fmt::print("  cost of tracing {:>10} us a step\n", us(traced - plain[i]));
    }
  }
  findings += check_outputs(group, outputs);
  group.barrier();
  return findings;
}

/// Everything one rank does.
std::size_t replay_rank(Session& session, HostGroup& group, int gpu, bool leads_process, const CostTable* costs,
                        const std::vector<bool>& ways, Json& out) {
  const int rank = group.rank();
  const Plan& plan = session.plan;
  const Ns deadline{session.command.deadline_s * 1'000'000'000};
  runtime::ReplayOptions options;
  options.gpu = gpu;
  // What a kernel waits for a peer: no longer than the host does.
  options.deadline = std::min(options.deadline, deadline);
  options.spin = runtime::default_spin(static_cast<int>(plan.threads.size()) * group.size());
  // With fewer GPUs than the plan has ranks, real kernels all play its first rank.
  const int plan_rank = costs == nullptr && group.size() < plan.world.ranks ? 0 : rank;
  runtime::NcclComm comm;
  runtime::SourceMaker source;
  if (costs != nullptr) {
    source = runtime::stand_in_source(session.work[static_cast<std::size_t>(rank)]);
  } else {
    runtime::start_gpu(gpu);
    if (group.size() > 1) comm = runtime::NcclComm::create(group);
    runtime::MoeOptions real;
    real.wires = session.wires;
    real.poison = session.command.poison;
    source = runtime::moe_source(comm ? &comm : nullptr, real);
  }
  options.abort = [&] {
    (void)comm.abort_within(Ns{3'000'000'000});
    if (session.processes) group.abort();
  };
  RankReplay replay(group, plan, plan_rank, source, session.guard, options);
  const Live live(session, rank, &replay);
  if (rank == 0) print_setup(session, replay);
  group.limit(deadline);
  if (!session.processes) return run_ways(session, group, replay, leads_process, costs, ways, out);
  // Nobody stops the other processes, and destructors would wait for kernels whose peer is gone: the guard says where
  // this rank's lanes stand and leaves. The others miss it at their next barrier.
  try {
    return run_ways(session, group, replay, leads_process, costs, ways, out);
  } catch (const CudaError& error) {
    session.guard.fail(error.what());
  } catch (const NcclError& error) {
    session.guard.fail(error.what());
  }
}

}  // namespace

int run_replay(const ReplayCommand& command) {
  const Plan plan = load_plan(command.plan);
  std::optional<CostTable> costs;
  if (!command.costs.empty()) costs = costs_from_file(plan, command.costs);
  static_cast<void>(trace_mode(command.trace, costs.has_value()));
  const std::vector<runtime::GpuInfo> gpus = runtime::list_gpus();
  const auto launcher = runtime::launcher_rank([](const char* name) { return std::getenv(name); });
  const int ranks = launcher ? launcher->size : static_cast<int>(command.gpus);
  if (ranks < 1 || ranks > plan.world.ranks)
    throw InputError("the plan has " + std::to_string(plan.world.ranks) + " ranks, asked for " + std::to_string(ranks));
  if (!launcher && ranks > static_cast<int>(gpus.size()))
    throw InputError("asked for " + std::to_string(ranks) + " GPUs, this machine has " + std::to_string(gpus.size()));
  if (command.iterations < 1) throw InputError(fmt::format("--iters: must be at least 1, is {}", command.iterations));
  if (command.deadline_s < 1)
    throw InputError(fmt::format("--deadline: must be at least 1 second, is {}", command.deadline_s));
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 32;
  if (std::min(command.send_bytes, command.work_bytes) < 0 ||
      std::max(command.send_bytes, command.work_bytes) > kMostBytes)
    throw InputError(fmt::format("--send-bytes and --work-bytes: must be from 0 to 4 GiB, are {} and {}",
                                 command.send_bytes, command.work_bytes));
  if (!(command.tolerance >= 0))
    throw InputError(fmt::format("--tolerance: must be a percentage from 0, is {}", command.tolerance));

  Session session{
      plan, command, {}, {}, launcher.has_value(), runtime::HangGuard(Ns{command.deadline_s * 1'000'000'000}),
      {},   {},      {}};
  if (!command.fabric.empty()) {
    if (ranks == plan.world.ranks) throw InputError("--fabric: all the plan's ranks are here, wires are real");
    session.wires = emulated_wires(plan, gpus[0].name, command.fabric);
  }
  bool host_blocks = false;
  for (int rank = 0; rank < ranks; ++rank) {
    if (costs) session.work.push_back(stand_ins(plan, *costs, rank, gpus[0].sms, command));
    host_blocks = host_blocks || blocks_host(linearise(plan, plan.class_of(rank)));
  }
  std::vector<bool> ways;
  if (command.eager || (!command.graph && plan.execution == Execution::Eager)) ways.push_back(false);
  if (command.graph || (!command.eager && plan.execution == Execution::Graph)) ways.push_back(true);
  if (host_blocks && ways.back()) {
    if (command.graph) throw InputError("the plan has ops that block the host: it cannot be captured, use --eager");
    ways = {false};
  }
  if (!command.out.empty()) make_folder(command.out);
  const runtime::Versions v = runtime::versions();
  const bool prints = !launcher || launcher->rank == 0;
  if (prints)
    fmt::print("# {} x {}, driver {}, CUDA {}, NCCL {}, plan {}, {} of {} ranks\n", ranks, gpus[0].name,
               runtime::version_text(v.driver), runtime::version_text(v.runtime), runtime::nccl_version_text(v.nccl),
               plan_hash(plan), ranks, plan.world.ranks);

  const CostTable* given = costs ? &*costs : nullptr;
  Json ways_out = Json::array();
  std::size_t findings = 0;
  if (launcher) {
    const int gpu = launcher->local_rank % static_cast<int>(gpus.size());
    runtime::start_gpu(gpu);
    const runtime::ProcessGroup joined = runtime::join_processes(*launcher);
    if (prints) fmt::print("# one process per GPU, {}\n", joined.how);
    findings = replay_rank(session, *joined.group, gpu, true, given, ways, ways_out);
  } else {
    runtime::InProcessGroup group(ranks);
    runtime::run_ranks(
        group, ranks,
        [&](HostGroup& member) {
          Json mine = Json::array();
          const std::size_t found = replay_rank(session, member, member.rank(), member.rank() == 0, given, ways, mine);
          if (member.rank() == 0) {
            findings = found;
            ways_out = std::move(mine);
          }
        },
        [&](int rank) {
          const std::lock_guard lock(session.mutex);
          const auto live = session.live.find(rank);
          if (live != session.live.end()) live->second->stop(std::make_exception_ptr(runtime::Stopped{}));
        });
  }
  if (prints && !command.out.empty()) {
    Json json = Json::object();
    json.set("plan_hash", plan_hash(plan));
    json.set("device", gpus[0].name);
    json.set("ranks", ranks);
    json.set("ways", std::move(ways_out));
    write_file(command.out + "/replay.json", pretty_json(json));
  }
  return static_cast<int>(findings == 0 ? Exit::Ok : Exit::Finding);
}

}  // namespace dbo
