// What running ops take from each other, worked by hand, and the rules no sharing may break.
#include "sim/engine/sharing.h"

#include <doctest/doctest.h>

#include "tests/sim/engine/lane_plan.h"
#include "tests/sim/engine/random_costs.h"

using namespace dbo;
using fakes::LaneOp;
using fakes::LanePlan;

namespace {

/// 132 SMs, 1 TB/s of memory, 100 GB/s of link.
const MachineRates kMachine{.sms = 132,
                            .hbm_bytes_per_s = 1'000'000'000'000,
                            .sm_bytes_per_s = 0,
                            .link_bytes_per_s = 100'000'000'000,
                            .nic_bytes_per_s = 0};

OpDemand demand(int sms, std::int64_t hbm_bytes = 0) {
  OpDemand d;
  d.sms = sms;
  d.hbm_bytes = hbm_bytes;
  return d;
}

std::vector<OpTimes> times_of(const LanePlan& p, int rank = 0) {
  EngineOptions options;
  options.record = {rank};
  return run_engine(p.plan, p.costs, options).times[0];
}

std::int64_t lost(const OpTimes& t, SlowCause cause) {
  return t.lost[static_cast<std::size_t>(cause)];
}

}  // namespace

TEST_CASE("sharing: memory is shared fairly, and who asks for little gets it") {
  // X asks for 1/4 of the memory, Y for all of it: Y runs at 3/4 beside X, 75 of its 100 us, and alone after.
  LanePlan p = fakes::lane_plan(
      {{"X", OpKind::Other, 0, 100, demand(0, 25'000'000)}, {"Y", OpKind::Other, 1, 100, demand(0, 100'000'000)}},
      kMachine);
  std::vector<OpTimes> t = times_of(p);
  CHECK(t[0].end == 100000);
  CHECK(t[1].end == 125000);
  CHECK(lost(t[1], SlowCause::Hbm) == 25000);
  CHECK(lost(t[0], SlowCause::Hbm) == 0);
  // Both all of it: half each.
  p.cost("X").demand.hbm_bytes = 100'000'000;
  t = times_of(p);
  CHECK(t[0].end == 200000);
  CHECK(t[1].end == 200000);
  // Three: X 1/4, the others half of the rest each, 3/8 of the whole, until X ends; then half each.
  p = fakes::lane_plan({{"X", OpKind::Other, 0, 80, demand(0, 20'000'000)},
                        {"Y", OpKind::Other, 1, 100, demand(0, 100'000'000)},
                        {"Z", OpKind::Other, 2, 100, demand(0, 100'000'000)}},
                       kMachine);
  t = times_of(p);
  CHECK(t[0].end == 80000);
  CHECK(t[1].end == 80000 + 140000);  // 30 us of work done by 80, 70 left at half speed
  CHECK(t[2].end == t[1].end);
}

TEST_CASE("sharing: a comm kernel waits for blocks to leave, then takes their SMs") {
  // The host launches X at 10 us and D at 20 us. X fills the GPU with blocks of 50 us: D gets its 20 SMs at 60. X's one
  // wave is two on 112 SMs: half speed while D runs for 30 us, so 50 + 15 us done at 90, and 35 more at full speed.
  LanePlan p = fakes::lane_plan(
      {{"X", OpKind::Other, kComputeLane, 100, demand(132)}, {"D", OpKind::D, kCommLane, 30, demand(20)}}, kMachine);
  p.costs.host.launch = Ns{10000};
  p.cost("X").demand.tiles = 132;
  p.cost("X").demand.block = Ns{50000};
  std::vector<OpTimes> t = times_of(p);
  CHECK(t[0].start == 10000);
  CHECK(t[0].end == 125000);
  CHECK(lost(t[0], SlowCause::Sms) == 15000);
  CHECK(t[1].ready == 20000);
  CHECK(t[1].start == 60000);
  CHECK(t[1].end == 90000);
  CHECK(t[1].bound == Bound::Sms);
  // A kernel that stays on its SMs to its end makes it wait for all of X.
  p.cost("X").demand.block = Ns{100000};
  t = times_of(p);
  CHECK(t[0].end == 110000);
  CHECK(t[1].start == 110000);
  CHECK(t[1].end == 140000);
  // With the SMs set apart neither notices the other.
  p.cost("X").demand.sms = 112;
  t = times_of(p);
  CHECK(t[0].end == 110000);
  CHECK(t[1].start == 20000);
  CHECK(t[1].end == 50000);
}

TEST_CASE("sharing: a kernel that is not cooperative starts on the SMs there are") {
  // 24 of 132 SMs are free beside X, which starts at 10 us. D wants 32 at 20: it starts on 24, at 3/4 of its speed, and
  // has 8 more when blocks of X leave at 50 us: 22.5 us done by then, 17.5 left.
  LanePlan p = fakes::lane_plan(
      {{"X", OpKind::Other, kComputeLane, 400, demand(108)}, {"D", OpKind::D, kCommLane, 40, demand(32)}}, kMachine);
  p.costs.host.launch = Ns{10000};
  p.cost("X").demand.block = Ns{40000};
  p.cost("X").demand.sm_share = 0;
  std::vector<OpTimes> t = times_of(p);
  CHECK(t[1].start == 20000);
  CHECK(t[1].end == 67500);
  CHECK(lost(t[1], SlowCause::Sms) == 7500);
  CHECK(t[0].end == 410000);
  // A cooperative one needs all 32 at once.
  p.cost("D").demand.cooperative = true;
  t = times_of(p);
  CHECK(t[1].ready == 20000);
  CHECK(t[1].start == 50000);
  CHECK(t[1].end == 90000);
}

TEST_CASE("sharing: small blocks that wait share the first SMs to fall free, and stay there") {
  // D has 8 blocks of 30 us, four of which fit an SM. X fills the GPU to 110 us: D gets 2 SMs then, not 8, where it
  // takes 4 times as long, though the other 130 are free as well by then.
  LanePlan p = fakes::lane_plan(
      {{"X", OpKind::Other, kComputeLane, 100, demand(132)}, {"D", OpKind::D, kCommLane, 30, demand(8)}}, kMachine);
  p.costs.host.launch = Ns{10000};
  p.cost("D").demand.blocks_per_sm = 4;
  p.cost("X").demand.block = Ns{100000};
  std::vector<OpTimes> t = times_of(p);
  CHECK(t[0].end == 110000);
  CHECK(t[1].start == 110000);
  CHECK(t[1].end == 230000);
  CHECK(lost(t[1], SlowCause::Sms) == 90000);
  // Blocks of X leave at 60 us: it goes on with 130 SMs, 132/130 times as long: 49.24 us done on 130 by 110, rest
  // alike.
  p.cost("X").demand.block = Ns{50000};
  t = times_of(p);
  CHECK(t[1].start == 60000);
  CHECK(t[1].end == 180000);
  CHECK(t[0].end == doctest::Approx(60000 + 50000 * 132.0 / 130).epsilon(1e-5));
  // 4 SMs are free: two blocks on each, at once and at half speed.
  p.cost("X").demand.sms = 128;
  t = times_of(p);
  CHECK(t[0].end == 110000);
  CHECK(t[1].start == 20000);
  CHECK(t[1].end == 80000);
  // One is: half of the blocks start there, the others have to wait for another at 60 us. 40 us at 1/8, 100 at 1/4.
  p.cost("X").demand.sms = 131;
  t = times_of(p);
  CHECK(t[1].start == 20000);
  CHECK(t[1].end == 160000);
  // 32 are free: an SM each.
  p.cost("X").demand.sms = 100;
  t = times_of(p);
  CHECK(t[1].start == 20000);
  CHECK(t[1].end == 50000);
}

TEST_CASE("sharing: blocks that share an SM wait for memory together") {
  // X asks for all memory from 0 to 100 us and leaves 2 SMs to D's 4 blocks, which take twice as long beside it, as
  // they would on 4 SMs: the longer of the two counts. A kernel of 2 blocks that fill their SMs is slowed twice over.
  LanePlan p = fakes::lane_plan(
      {{"X", OpKind::Other, kComputeLane, 400, demand(130, 400'000'000)}, {"D", OpKind::D, kCommLane, 30, demand(4)}},
      kMachine);
  p.cost("D").demand.blocks_per_sm = 2;
  p.cost("D").demand.loaded = 1024;
  CHECK(times_of(p)[1].end == 60000);
  p.cost("D").demand.blocks_per_sm = 1;
  p.cost("X").demand.block = Ns{400000};  // so that it gets no third one
  p.costs.host.launch = Ns{1};
  CHECK(times_of(p)[1].end == doctest::Approx(120000).epsilon(1e-3));
}

TEST_CASE("sharing: comm kernels come first, and what they leave goes to compute") {
  LanePlan p = fakes::lane_plan(
      {{"X", OpKind::Other, kComputeLane, 100, demand(132)}, {"D", OpKind::D, kCommLane, 30, demand(66)}}, kMachine);
  std::vector<OpTimes> t = times_of(p);
  // Half the SMs, twice the time, while D runs.
  CHECK(t[1].start == 0);
  CHECK(t[0].start == 0);
  CHECK(t[0].end == 115000);
  // Two comm kernels of 80 SMs: the second starts on the other 52 and X waits for SMs.
  p = fakes::lane_plan({{"X", OpKind::Other, kComputeLane, 100, demand(132)},
                        {"D", OpKind::D, kCommLane, 30, demand(80)},
                        {"C", OpKind::C, 2, 40, demand(80)}},
                       kMachine);
  t = times_of(p);
  CHECK(t[1].end == 30000);
  CHECK(t[2].start == 0);
  CHECK(t[2].end == 50501);  // 19.5 us done on 52 of 80 SMs in 30 us, 20.5 on all; rounded up
  CHECK(t[0].start == 30000);
  CHECK(t[0].bound == Bound::Sms);
}

TEST_CASE("sharing: a green context limits kernels that ignore the SM count") {
  LanePlan p = fakes::lane_plan({{"A1", OpKind::A1, kComputeLane, 100, demand(132)}}, kMachine);
  p.plan.ops[0].sms = SmPool::All;
  p.plan.sm = {SmControl::GreenContext, 20, 66, 46};
  p.cost("A1").demand.tiles = 132;
  std::vector<OpTimes> t = times_of(p);
  CHECK(t[0].end == 200000);  // two waves
  p.plan.sm.control = SmControl::Limit;
  CHECK(times_of(p)[0].end == 100000);
}

TEST_CASE("sharing: compute and communication beside each other lose what overlap costs") {
  // D takes 1/4 longer beside compute, X 1/1 longer beside D: D 40 us at 4/5 = 50 us; X at half speed for those.
  LanePlan p = fakes::lane_plan(
      {{"X", OpKind::Other, kComputeLane, 100, demand(112)}, {"D", OpKind::D, kCommLane, 40, demand(20)}}, kMachine);
  p.cost("X").beside = Ns{200000};
  p.cost("D").beside = Ns{50000};
  const std::vector<OpTimes> t = times_of(p);
  CHECK(t[1].end == 50001);  // 4/5 is rounded down to 2^-20, the end up
  CHECK(t[0].end == 125001);
  CHECK(lost(t[0], SlowCause::Beside) == 25001);
  CHECK(lost(t[1], SlowCause::Beside) == 10001);
  // The loss holds shared memory: both ask for 3/4 of it, so that D gets 2/3 of its speed, X no less than its half.
  p.cost("X").demand.hbm_bytes = 75'000'000;
  p.cost("D").demand.hbm_bytes = 30'000'000;
  CHECK(times_of(p)[1].end == 60001);
  CHECK(times_of(p)[0].end == 130001);
  p.cost("X").demand.hbm_bytes = p.cost("D").demand.hbm_bytes = 0;
  // Copy engines take no SMs: nobody is disturbed.
  p.cost("D").demand.sms = 0;
  CHECK(times_of(p)[0].end == 100000);
  CHECK(times_of(p)[1].end == 40000);
}

TEST_CASE("sharing: a kernel that stores straight into place waits for memory, and costs compute bandwidth alone") {
  // X asks for half the memory and would lose beside DeepEP's kernels; D takes up to twice as long beside full memory:
  // at 1/1.5 its 60 us last 90. X has all it asks for.
  LanePlan p = fakes::lane_plan(
      {{"X", OpKind::Other, kComputeLane, 100, demand(112, 50'000'000)}, {"D", OpKind::D, kCommLane, 60, demand(20)}},
      kMachine);
  p.cost("X").beside = Ns{200000};
  p.cost("D").demand.loaded = 1024;
  const std::vector<OpTimes> t = times_of(p);
  CHECK(t[0].end == 100000);
  CHECK(t[1].end == 90001);  // 2/3 is rounded down, the end up
  CHECK(lost(t[1], SlowCause::Hbm) == 30001);
  // With nobody beside it, it takes its own time.
  p.cost("X").time = Ns{0};
  CHECK(times_of(p)[1].end == 60000);
}

TEST_CASE("sharing: who waits for peers holds SMs but moves nothing") {
  // Rank 1 starts D at 50 us, after Y; rank 0's D holds 20 SMs from 0 and moves data from 50 to 80 us, so that X there
  // runs on 112 SMs throughout but shares its memory only while data moves.
  LanePlan p = fakes::lane_plan({{"Y", OpKind::Other, kCommLane, 0, demand(0)},
                                 {"X", OpKind::Other, kComputeLane, 100, demand(112, 75'000'000)},
                                 {"D", OpKind::D, kCommLane, 30, demand(20, 15'000'000)}},
                                kMachine, 2);
  p.cost("Y", 1).time = Ns{50000};
  p.cost("X", 1).time = Ns{0};
  p.cost("X", 1).demand = {};
  const std::vector<OpTimes> t = times_of(p), other = times_of(p, 1);
  // Half the memory each of 3/4 and 1/2: D is not slowed; X gets 1/2 of 3/4 for 30 us and loses 10.
  CHECK(t[2].start == 0);
  CHECK(t[2].sent == 50000);
  CHECK(t[2].end == 80000);
  CHECK(t[1].end == 110001);  // 2/3 is rounded down, the end up
  CHECK(other[2].start == 50000);
  CHECK(other[2].end == 80000);
}

TEST_CASE("sharing: the slowest sender's loss reaches every rank, and counts as waiting there") {
  // On rank 1 memory is short: its D takes 60 us, not 30. Rank 0's own part is done after 30 us.
  LanePlan p = fakes::lane_plan({{"X", OpKind::Other, kComputeLane, 200, demand(112, 200'000'000)},
                                 {"D", OpKind::D, kCommLane, 30, demand(20, 30'000'000)}},
                                kMachine, 2);
  p.cost("X", 0).demand.hbm_bytes = 0;
  const std::vector<OpTimes> t = times_of(p), slow = times_of(p, 1);
  CHECK(slow[1].moved == 60000);
  CHECK(slow[1].end == 60000);
  CHECK(t[1].moved == 30000);
  CHECK(t[1].end == 60000);
  CHECK(lost(slow[1], SlowCause::Hbm) == 30000);
  CHECK(lost(t[1], SlowCause::Hbm) == 0);
}

TEST_CASE("sharing: speed on fewer SMs is a staircase of waves, or what memory leaves of it") {
  Share share;
  share.sms = 132;
  const auto slow = [&](int held) {
    return static_cast<double>(kFullSpeed) / static_cast<double>(sm_speed(share, held, kMachine));
  };
  // Tiles of 128 x 256 on 132 SMs less c, as published with the wave formula (224 tiles: 1.00 up to c = 20, 1.50 at
  // 24).
  struct Row {
    int tiles;
    double slow[6];
  };
  const int fewer[] = {4, 8, 16, 20, 24, 32};
  const Row rows[] = {{224, {1, 1, 1, 1, 1.5, 1.5}},
                      {448, {1, 1, 1, 1, 1.25, 1.25}},
                      {512, {1, 1.25, 1.25, 1.25, 1.25, 1.5}},
                      {1024, {1, 1.125, 1.125, 1.25, 1.25, 1.375}}};
  for (const Row& row : rows) {
    share.tiles = row.tiles;
    for (int i = 0; i < 6; ++i) CHECK(slow(132 - fewer[i]) == doctest::Approx(row.slow[i]).epsilon(1e-5));
  }
  share.tiles = 0;
  CHECK(slow(66) == doctest::Approx(2).epsilon(1e-5));
  // Half of its time is arithmetic: that half grows.
  share.sm_share = 512;
  CHECK(slow(66) == doctest::Approx(1.5).epsilon(1e-5));
  // A port takes three quarters, SMs beside it half: on a third of them 1.5 times the whole, on two thirds still 0.75.
  share.link = kFullSpeed * 3 / 4;
  CHECK(slow(44) == doctest::Approx(0.25 + 1.5).epsilon(1e-5));
  CHECK(slow(88) == doctest::Approx(1).epsilon(1e-5));
  share.link = 0;
  // All of its time is memory traffic at the machine's rate, 33 GB/s an SM at most: 31 SMs carry all, 15 half of it.
  share.sm_share = 0;
  share.hbm = kFullSpeed;
  MachineRates machine = kMachine;
  machine.sm_bytes_per_s = 33'000'000'000;
  CHECK(sm_speed(share, 31, machine) == kFullSpeed);
  CHECK(static_cast<double>(kFullSpeed) / static_cast<double>(sm_speed(share, 15, machine)) ==
        doctest::Approx(1000.0 / 495).epsilon(1e-4));
}

TEST_CASE("sharing: however many ask, they take no more than there is, and only a full resource slows them") {
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    CAPTURE(seed);
    fakes::Draw draw(seed);
    const int count = 1 + static_cast<int>(draw.below(7));
    std::vector<Share> shares(static_cast<std::size_t>(count));
    std::vector<Runner> runners(static_cast<std::size_t>(count));
    const auto ask = [&] { return draw.one_in(3) ? 0 : static_cast<std::int32_t>(draw.below(kFullSpeed + 1)); };
    for (std::size_t i = 0; i < runners.size(); ++i) {
      shares[i].hbm = ask();
      shares[i].link = ask();
      shares[i].nic = ask();
      runners[i].share = &shares[i];
      if (draw.one_in(4)) runners[i].sm_speed = 1 + draw.below(kFullSpeed);
    }
    const std::int64_t moving = draw.one_in(2) ? draw.below(kFullSpeed) : 0;
    share_out(runners.data(), count, moving);
    std::int64_t asked[3] = {moving, 0, 0}, taken[3] = {moving, 0, 0};
    constexpr std::int32_t Share::*kAll[] = {&Share::hbm, &Share::link, &Share::nic};
    for (const Runner& r : runners)
      for (int k = 0; k < 3; ++k) {
        asked[k] += r.share->*kAll[k];
        taken[k] += (r.share->*kAll[k] * r.speed) >> kSpeedBits;
      }
    for (int k = 0; k < 3; ++k) CHECK(taken[k] <= kFullSpeed);
    for (const Runner& r : runners) {
      CHECK(r.speed <= r.sm_speed);
      if (r.limit == Limit::None) CHECK(r.speed == r.sm_speed);
      if (r.limit == Limit::Hbm) CHECK(asked[0] > kFullSpeed);
      if (r.limit == Limit::Link) CHECK(asked[1] > kFullSpeed);
      if (r.limit == Limit::Nic) CHECK(asked[2] > kFullSpeed);
    }
  }
}
