#include "sim/cost/profile.h"
#include "sim/cost/profile_points.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "sim/base/error.h"
#include "sim/model/presets.h"
#include "sim/sched/schedule.h"

using namespace dbo;

namespace {

MachineSpec machine() {
  return {.gpu = gpu_preset("h200-sxm"), .fabric = fabric_preset("cx7-400g"), .host = {}, .factors = nullptr};
}

/// Decode of `tokens` requests of `context` a rank in two ubatches on 8 GPUs.
Plan decode_plan(int tokens, int context, Transport transport = Transport::LsaLl, int ranks = 8) {
  ScheduleSpec spec;
  spec.shape = model_preset("deepseek-v2-lite");
  spec.world = {.ranks = ranks, .ranks_per_node = 8};
  spec.transport = transport;
  spec.ubatches = 2;
  Load load;
  for (int u = 0; u < 2; ++u) {
    UbatchLoad part;
    part.token_begin = tokens / 2 * u;
    part.token_end = part.token_begin + tokens / 2;
    part.padded = tokens / 2;
    for (int t = 0; t <= tokens / 2; ++t) part.query_start_loc.push_back(t);
    part.seq_lens.assign(static_cast<std::size_t>(tokens) / 2, context);
    load.ubatches.push_back(part);
  }
  spec.loads = {load};
  spec.classes = {{{{0, ranks}}, 0}};
  return make_plan(transport == Transport::LsaLl ? "vllm-ll" : "vllm-ht", spec);
}

ProfilePoint point(std::string_view op, std::int64_t tokens, std::int64_t context, double us) {
  ProfilePoint p;
  p.op = op;
  p.tokens = tokens;
  p.context = context;
  p.sms = 132;
  p.precision = Precision::Bf16;
  p.median_us = us;
  p.spread_us = us / 100;
  p.repeats = 20;
  return p;
}

/// At context 1000, with a clock.
ProfilePoint clocked(std::string_view op, std::int64_t tokens, double us, int mhz, int duty) {
  ProfilePoint p = point(op, tokens, 1000, us);
  p.sm_mhz = mhz;
  p.duty = duty;
  return p;
}

Profile profile(std::vector<ProfilePoint> points) {
  Profile out;
  out.file = "p.json";
  out.machine.gpu = "NVIDIA H200";
  out.machine.preset = "h200-sxm";
  out.date = "2026-11-30";
  out.shape = model_preset("deepseek-v2-lite");
  out.points = std::move(points);
  return out;
}

/// A dispatch and a combine over lsa-ht, of 64 tokens by each rank of the plan, that took 2 us each inside a node.
std::pair<ProfilePoint, ProfilePoint> short_exchange(const Plan& plan) {
  ProfilePoint d = point("D", 64, 0, 2), c = point("C", 64, 0, 2);
  for (ProfilePoint* p : {&d, &c}) {
    p->transport = Transport::LsaHt;
    p->ranks = plan.world.ranks;
    p->sms = plan.sm.comm;
  }
  d.precision = plan.shape.dispatch;
  c.precision = plan.shape.combine;
  return {d, c};
}

OpCost cost_of(const Plan& plan, const CostTable& table, std::string_view op) {
  return table.at(0, table.layer_class(5), 0, *plan.find_op(op));
}

std::string error_of(Json json) {
  try {
    profile_from_json(JsonRef(wrap_json(std::move(json), "p.json")));
  } catch (const InputError& error) {
    return error.pointer() + ": " + error.message();
  }
  return "no error";
}

Json* member(Json& object, std::string_view key) {
  for (Json::Member& m : object.members())
    if (m.first == key) return &m.second;
  return nullptr;
}

}  // namespace

TEST_CASE("profile: between two measured clocks a time goes with the clock's period, and memory waits for none") {
  // A1 took 100 us at 1400 MHz and 80 at 1750: the same cycles. S took 50 at both.
  const auto at = [](ProfilePoint p, int mhz, int duty) {
    p.sm_mhz = mhz;
    p.duty = duty;
    return p;
  };
  Plan plan = decode_plan(128, 1000, Transport::LsaHt);
  plan.sm = {SmControl::Limit, 16, 116, 0};
  std::vector<ProfilePoint> points = {
      at(point("A0", 64, 1000, 20), 1400, 100),  at(point("A0", 64, 1000, 19), 1750, 67),
      at(point("A1", 64, 1000, 100), 1400, 100), at(point("A1", 64, 1000, 80), 1750, 67),
      at(point("S", 64, 0, 50), 1400, 100),      at(point("S", 64, 0, 50), 1750, 67),
      at(point("A1", 64, 1000, 90), 1750, 100)};
  for (ProfilePoint& p : points) p.sms = 116;
  points.back().beside = "D+C";
  points.back().beside_sms = 16;
  const Profile measured = profile(points);
  CHECK(relaxed_duty(measured) == 67);
  const auto costs = [&](const PowerState& power, std::string_view op) {
    return cost_of(plan, profile_costs(plan, measured, machine(), nullptr, power), op);
  };
  CHECK(costs({1, 0}, "A1").time == Ns{100'000});
  CHECK(costs({0.67, 0}, "A1").time == Ns{80'000});
  CHECK(costs({0.3, 0}, "A1").time == Ns{80'000});
  // Half way in duty the clock is 1575 MHz: 140,000 cycles take 88.889 us.
  CHECK(costs({0.835, 0}, "A1").time == Ns{88'889});
  // Something else decides the clock; below what was measured the cycles stay.
  CHECK(costs({1, 1750}, "A1").time == Ns{80'000});
  CHECK(costs({1, 1200}, "A1").time == Ns{116'667});
  for (const double mhz : {1200.0, 1400.0, 1600.0, 1900.0}) CHECK(costs({1, mhz}, "S").time == Ns{50'000});
  // Company cost an eighth at 1750 MHz, so it does at any clock.
  CHECK(costs({1, 1750}, "A1").beside == Ns{90'000});
  CHECK(costs({1, 1400}, "A1").beside == Ns{112'500});
  CHECK(profile_costs(plan, measured, machine(), nullptr, {0.835, 0}).sm_mhz == 1575);
  // Without points at two clocks there is nothing to go by.
  std::erase_if(points, [](const ProfilePoint& p) { return p.duty < 100; });
  const CostTable dense = profile_costs(plan, profile(points), machine(), nullptr, {0.67, 0});
  CHECK(cost_of(plan, dense, "A1").time == Ns{100'000});
  CHECK(dense.sm_mhz == 0);
}

TEST_CASE("profile: costs priced once and set to one clock after another are those priced at each") {
  // Beside kernels and alone, over a fabric that the profile did not see, eagerly, with a straggler.
  Plan plan = decode_plan(128, 1000, Transport::LsaHt, 16);
  plan.sm = {SmControl::Limit, 16, 116, 0};
  plan.execution = Execution::Eager;
  const auto [d, c] = short_exchange(plan);
  std::vector<ProfilePoint> points = {d, c};
  for (const auto& [op, us] : {std::pair{"A0", 20.0}, {"A1", 100.0}, {"S", 50.0}, {"EMB", 3.0}})
    for (const bool paused : {false, true}) {
      points.push_back(point(op, 64, 1000, paused ? us * 0.85 : us));
      points.back().duty = paused ? 67 : 100;
      points.back().sm_mhz = paused ? 1750 : 1400;
      points.back().sms = 116;
    }
  points.push_back(point("A1", 64, 1000, 110));
  points.back().sms = 116;
  points.back().sm_mhz = 1600;
  points.back().beside = "D+C";
  points.back().beside_sms = 16;
  Profile measured = profile(points);
  measured.host = HostCosts{};
  measured.host->eager_node_gap = Ns{900};
  measured.fits.push_back({"kernels of A1", "kernels", {{"kernels", 12.0}}, 0, 1});
  MachineSpec uneven = machine();
  uneven.stragglers = {{.ranks = {3}, .compute_factor = 1.3}};
  ClockedCosts costs = clocked_costs(plan, measured, uneven);
  CHECK(costs.has_clocks());
  std::vector<Ns> seen;
  for (const PowerState& power : {PowerState{1, 0}, {0.8, 0}, {0.2, 0}, {1, 1900}, {1, 1300}, {0.8, 0}}) {
    costs.set(power);
    const CostTable anew = profile_costs(plan, measured, uneven, nullptr, power);
    CHECK(costs.table().sm_mhz == anew.sm_mhz);
    REQUIRE(costs.table().groups() == anew.groups());
    for (int g = 0; g < anew.groups(); ++g)
      for (int l = 0; l < anew.layer_classes(); ++l)
        for (int u = 0; u < anew.ubatches(); ++u)
          for (OpId op = 0; op < plan.ops.size(); ++op) CHECK(costs.table().at(g, l, u, op) == anew.at(g, l, u, op));
    seen.push_back(cost_of(plan, anew, "A1").time);
  }
  CHECK(seen[1] < seen[0]);
  CHECK(seen[5] == seen[1]);
}

TEST_CASE("profile: points whose clock is not known say nothing of clocks") {
  const Plan plan = decode_plan(128, 1000);  // two ubatches of 64 tokens
  // A0's clock at 64 tokens was not seen: at 32 and 128 it was 1400 and 1750 MHz. A1 took the same cycles at both.
  std::vector<ProfilePoint> points = {clocked("A0", 32, 20, 1400, 100),  clocked("A0", 64, 20, 0, 100),
                                      clocked("A0", 128, 20, 1400, 100), clocked("A0", 64, 19, 1750, 67),
                                      clocked("A1", 64, 100, 1400, 100), clocked("A1", 64, 80, 1750, 67)};
  const CostTable some = profile_costs(plan, profile(points), machine(), nullptr, {0.835, 0});
  CHECK(some.sm_mhz == 1575);
  CHECK(cost_of(plan, some, "A1").time == Ns{88'889});
  // Not seen at all: what was measured without pauses holds.
  points[0].sm_mhz = points[2].sm_mhz = 0;
  const CostTable none = profile_costs(plan, profile(points), machine(), nullptr, {0.835, 0});
  CHECK(none.sm_mhz == 0);
  CHECK(cost_of(plan, none, "A1").time == Ns{100'000});
}

TEST_CASE("profile: points with pauses that say nothing of the clock are not used, and a warning names the place") {
  const Plan plan = decode_plan(128, 1000);  // two ubatches of 64 tokens
  const std::vector<ProfilePoint> good = {clocked("A0", 64, 20, 1400, 100), clocked("A0", 64, 19, 1750, 67),
                                          clocked("A1", 64, 100, 1400, 100), clocked("A1", 64, 80, 1750, 67)};
  const auto kept = [&](std::vector<ProfilePoint> more) {
    more.insert(more.begin(), good.begin(), good.end());
    Profile p = profile(std::move(more));
    keep_usable_clocks(p);
    return p;
  };
  const auto a1_at_half = [&](const Profile& p) {
    return cost_of(plan, profile_costs(plan, p, machine(), nullptr, {0.835, 0}), "A1").time;
  };
  CHECK(kept({}).warnings.empty());
  CHECK(a1_at_half(kept({})) == Ns{88'889});
  // A stray point at another duty, even a lower one.
  const Profile stray = kept({clocked("S", 64, 50, 1900, 30), clocked("EMB", 64, 3, 1900, 30)});
  CHECK(stray.points.size() == 4);
  CHECK(relaxed_duty(stray) == 67);
  CHECK(a1_at_half(stray) == Ns{88'889});
  REQUIRE(stray.warnings.size() == 1);
  CHECK(stray.warnings[0] ==
        "p.json: /points/4/duty: 30, and most points with pauses are at duty 67; this point and 1 more with pauses "
        "(\"duty\") cannot be used");
  const std::vector<std::string> said = profile_costs(plan, stray, machine()).assumptions;
  CHECK(std::count(said.begin(), said.end(), stray.warnings[0] + ".") == 1);
  // Slower with pauses than without, and clocked lower: neither is an effect of the clock.
  const Profile slow = kept({clocked("S", 64, 50, 1400, 100), clocked("S", 64, 60, 1750, 67)});
  REQUIRE(slow.warnings.size() == 1);
  CHECK(slow.warnings[0] ==
        "p.json: /points/5/median_us: 60, and without pauses it took less, 50 us; this point with pauses (\"duty\") "
        "cannot be used");
  for (const double mhz : {1400.0, 1750.0})
    CHECK(cost_of(plan, profile_costs(plan, slow, machine(), nullptr, {1, mhz}), "S").time == Ns{50'000});
  const Profile low = kept({clocked("S", 64, 50, 1400, 100), clocked("S", 64, 50, 1300, 67)});
  REQUIRE(low.warnings.size() == 1);
  CHECK(low.warnings[0].find("p.json: /points/5/sm_mhz: 1300, and without pauses the clock was higher, 1400 MHz") == 0);
  // What varies by more than a clock changes: the shortest kernels.
  CHECK(kept({clocked("EMB", 64, 1, 1400, 100), clocked("EMB", 64, 1.6, 1750, 67)}).warnings.empty());
}

TEST_CASE("profile: without clocks that lead to one, computation is priced as measured without pauses, and says so") {
  ProfilePoint a0 = point("A0", 64, 1000, 20), a1 = point("A1", 64, 1000, 100), paused = point("A1", 64, 1000, 80);
  a1.sm_mhz = 1400;
  paused.sm_mhz = 1750;
  paused.duty = 67;
  Profile unknown = profile({a0, a1, paused});
  keep_usable_clocks(unknown);
  REQUIRE(unknown.warnings.size() == 1);
  CHECK(unknown.warnings[0] ==
        "p.json: /points: no A0 of decode with a clock (\"sm_mhz\") both with and without pauses, so its computation "
        "is priced as measured without");
  const Plan plan = decode_plan(128, 1000);
  CHECK(cost_of(plan, profile_costs(plan, unknown, machine(), nullptr, {0.67, 0}), "A1").time == Ns{100'000});
  paused.sm_mhz = 0;
  Profile none = profile({a0, a1, paused});
  keep_usable_clocks(none);
  REQUIRE(none.warnings.size() == 1);
  CHECK(none.warnings[0] ==
        "p.json: /points/2/sm_mhz: 0, and no point with pauses has a clock; this point with pauses (\"duty\") cannot "
        "be used");
  CHECK(relaxed_duty(none) == 100);
  for (const auto& name : shipped_profile_names()) {
    Profile shipped = *shipped_profile(name.substr(0, name.find('.')), name.substr(name.find('.') + 1));
    const std::size_t points = shipped.points.size();
    keep_usable_clocks(shipped);
    CHECK(shipped.warnings.empty());
    CHECK(shipped.points.size() == points);
  }
}

TEST_CASE("profile: an op too short to measure alone still costs what it does in company") {
  ClockedCost cost;
  cost.curve = {{0, 1500}, {0, 1800}};
  cost.in_company = true;
  cost.company = {3000, 1700};
  CHECK(cost.beside_at(1600, Ns{0}) == Ns{3000});
}

TEST_CASE("profile: the more a GPU waits, the less its computation takes, and a higher clock never costs time") {
  const Plan plan = decode_plan(128, 1000);
  // Of the pairs one got slower with pauses (noise), and one sped up more than its clock did.
  for (const auto& [dense_us, relaxed_us] : {std::pair{100.0, 90.0}, {100.0, 101.0}, {100.0, 60.0}}) {
    const Profile measured = profile({clocked("A0", 64, 20, 1450, 100), clocked("A0", 64, 20, 1800, 67),
                                      clocked("A1", 64, dense_us, 1450, 100), clocked("A1", 64, relaxed_us, 1800, 67)});
    Ns before{INT64_MAX};
    for (double mhz = 1200; mhz <= 1980; mhz += 20) {
      const Ns now = cost_of(plan, profile_costs(plan, measured, machine(), nullptr, {1, mhz}), "A1").time;
      CHECK(now <= before);
      CHECK(now > Ns{0});
      before = now;
    }
  }
}

TEST_CASE("profile: company counts as the plan has it: other comm kernels, copy engines, or none") {
  const auto beside = [](double us, int sms) {
    ProfilePoint p = point("S", 64, 0, us);
    p.beside = "D+C";
    p.beside_sms = sms;
    return p;
  };
  const Profile measured = profile({point("S", 64, 0, 50), beside(60, 16), beside(75, 20), beside(55, 0)});
  Plan kernels = decode_plan(128, 1000, Transport::LsaHt);
  kernels.sm = {SmControl::Limit, 20, 132, 0};
  CHECK(cost_of(kernels, profile_costs(kernels, measured, machine()), "S").beside == Ns{75'000});
  kernels.sm.comm = 16;
  CHECK(cost_of(kernels, profile_costs(kernels, measured, machine()), "S").beside == Ns{60'000});
  // Not measured beside so many: whatever kernels there were, the slowest counts.
  kernels.sm.comm = 12;
  CHECK(cost_of(kernels, profile_costs(kernels, measured, machine()), "S").beside == Ns{75'000});
  Plan copies = decode_plan(128, 1000, Transport::CopyEngine);
  copies.sm = {SmControl::Limit, 0, 132, 0};
  CHECK(cost_of(copies, profile_costs(copies, measured, machine()), "S").beside == Ns{55'000});
  CHECK(profile_costs(copies, measured, machine()).copies_slow);
  CHECK(!profile_costs(kernels, measured, machine()).copies_slow);
  // What was measured beside comm kernels says nothing of copy engines.
  CHECK(!profile_costs(copies, profile({point("S", 64, 0, 50), beside(60, 16)}), machine()).copies_slow);
  // Low-latency kernels sent before S began: in proportion to the cost model, whatever was measured.
  Plan sends = decode_plan(128, 1000, Transport::LsaLl);
  sends.sm = {SmControl::Limit, 0, 132, 0};
  const Profile alone = profile({point("S", 64, 0, 50)});
  CHECK(cost_of(sends, profile_costs(sends, measured, machine()), "S").beside ==
        cost_of(sends, profile_costs(sends, alone, machine()), "S").beside);
}

TEST_CASE("profile: between sizes measured in company, what that costs is a share of what the op takes alone") {
  const auto beside = [](std::int64_t tokens, double us) {
    ProfilePoint p = point("S", tokens, 0, us);
    p.beside = "D+C";
    p.beside_sms = 16;
    return p;
  };
  Plan kernels = decode_plan(2 * 48, 1000, Transport::LsaHt);
  kernels.sm = {SmControl::Limit, 16, 132, 0};
  // Half as much again at 32 tokens, a quarter at 64; of 48 tokens alone it is known that they take as long as 64.
  const Profile measured =
      profile({point("S", 32, 0, 40), point("S", 48, 0, 80), point("S", 64, 0, 80), beside(32, 60), beside(64, 100)});
  const OpCost cost = cost_of(kernels, profile_costs(kernels, measured, machine()), "S");
  CHECK(cost.time == Ns{80'000});
  CHECK(cost.beside == Ns{110'000});  // 80 us times 1.375
}

TEST_CASE("profile: SMs that both sorts of kernels count on are lost while the comm kernel waits, too") {
  // As below, but computation may use all 132 SMs, as beside an un-split step's exchange.
  Plan plan = decode_plan(128, 1000, Transport::LsaHt, 16);
  plan.sm = {SmControl::Limit, 20, 132, 0};
  const auto [d, c] = short_exchange(plan);
  ProfilePoint beside = point("S", 64, 0, 40);
  beside.beside = "D+C";
  beside.beside_sms = 20;
  const Profile measured = profile({d, c, point("S", 64, 0, 20), beside});
  const OpCost shared = cost_of(plan, profile_costs(plan, measured, machine()), "S");
  CHECK(shared.beside == Ns{40'000});
  // The loss holds that of the 20 SMs: the engine must not take them from it again.
  CHECK(shared.demand.sms == 112);
  plan.sm.compute = 112;
  CHECK(cost_of(plan, profile_costs(plan, measured, machine()), "S").beside < Ns{40'000});
}

TEST_CASE("profile: an MLP not measured over a transport takes what it took over one that lays out rows alike") {
  ProfilePoint by_expert = point("MLP", 512, 0, 106), by_rank = point("MLP", 512, 0, 90);
  by_expert.experts = by_rank.experts = 8;
  by_expert.transport = Transport::LsaLl;
  by_rank.transport = Transport::LsaHt;
  const auto said = [](const CostTable& table) {
    return std::any_of(table.assumptions.begin(), table.assumptions.end(),
                       [](const std::string& text) { return text.starts_with("MLP was not measured over "); });
  };
  const Plan own = decode_plan(160, 4096, Transport::LsaHt), copies = decode_plan(160, 4096, Transport::CopyEngine);
  const CostTable measured = profile_costs(own, profile({by_expert, by_rank}), machine());
  const CostTable borrowed = profile_costs(copies, profile({by_expert, by_rank}), machine());
  CHECK(cost_of(own, measured, "MLP").time == cost_of(copies, borrowed, "MLP").time);
  CHECK(!said(measured));
  CHECK(said(borrowed));
  // Rows by expert say nothing of rows by rank.
  CHECK(!said(profile_costs(copies, profile({by_expert}), machine())));
}

TEST_CASE("profile: what is written reads back the same") {
  ProfilePoint comm = point("D", 4096, 0, 120.5);
  comm.transport = Transport::LsaHt;
  comm.ranks = 2;
  comm.sms = 16;
  comm.beside = "MLP";
  comm.beside_sms = 116;
  ProfilePoint mlp = point("MLP", 512, 0, 80);
  mlp.experts = 8;
  mlp.prefill = true;
  Profile p = profile({point("A1", 64, 4096, 101.25), comm, mlp});
  p.machine.driver = "580.1";
  p.machine.sm_clock_mhz = 1980;
  p.host = HostCosts{.launch = Ns{2500},
                     .record = Ns{1},
                     .wait = {},
                     .yield = {},
                     .graph_launch = {},
                     .node_gap = {},
                     .lane_gap = {},
                     .eager_node_gap = Ns{3250},
                     .eager_lane_gap = {}};
  p.fits = {{"D of lsa-ht", "alpha_us + bytes / rate", {{"alpha_us", 4.25}, {"rate", 3.53e11}}, 0.03, 12}};
  const Profile back = profile_from_json(JsonRef(wrap_json(profile_to_json(p), "p.json")));
  CHECK(back.machine == p.machine);
  CHECK(back.points == p.points);
  CHECK(back.fits == p.fits);
  CHECK(back.host->launch == Ns{2500});
  CHECK(back.host->eager_node_gap == Ns{3250});
  CHECK(back.shape == p.shape);
  CHECK(compact_json(profile_to_json(back)) == compact_json(profile_to_json(p)));
}

TEST_CASE("profile: reading is strict") {
  const Json good = profile_to_json(profile({point("A1", 64, 4096, 101.25)}));
  CHECK(error_of(good) == "no error");
  const auto with_point = [&](std::string_view key, Json value) {
    Json json = good;
    member(json, "points")->items()[0].set(key, std::move(value));
    return error_of(json);
  };
  CHECK(with_point("op", "A2").starts_with("/points/0/op: unknown op \"A2\" (known: A0, A1, "));
  CHECK(with_point("tokns", 1).starts_with("/points/0/tokns: unknown key"));
  CHECK(with_point("median_us", -1).starts_with("/points/0/median_us: must be a number from 0"));
  CHECK(with_point("sm_mhz", 1755000) == "/points/0/sm_mhz: must be a whole number from 0 to 10000, is 1755000");
  CHECK(with_point("op", "D.send") == "/points/0: missing key \"transport\"");
  CHECK(with_point("op", "MLP") == "/points/0: missing key \"experts\"");
  Json twice = good;
  member(twice, "points")->push(member(twice, "points")->items()[0]);
  CHECK(error_of(twice) == "/points/1: is the same measurement as point 0; give its median once");
  Json date = good;
  date.set("date", "yesterday");
  CHECK(error_of(date) == "/date: must be a date like 2026-11-30, is \"yesterday\"");
  Json format = good;
  format.set("format", 2);
  CHECK(error_of(format).starts_with("/format: "));
}

TEST_CASE("profile: an op costs what was measured at a point, and something between at places between") {
  const Profile p = profile(
      {point("A1", 32, 1024, 50), point("A1", 64, 1024, 80), point("A1", 64, 4096, 140), point("A1", 32, 4096, 90)});
  const auto at = [&](int tokens, int context) {
    const Plan plan = decode_plan(2 * tokens, context);
    return cost_of(plan, profile_costs(plan, p, machine()), "A1").time;
  };
  CHECK(at(32, 1024) == Ns{50000});
  CHECK(at(64, 1024) == Ns{80000});
  CHECK(at(64, 4096) == Ns{140000});
  CHECK(at(48, 1024) == Ns{65000});
  CHECK(at(64, 2560) == Ns{110000});
  CHECK(at(48, 2560) == Ns{90000});
  Ns last{0};
  for (const int tokens : {8, 16, 31, 32, 33, 40, 63, 64, 65, 80, 128, 256}) {
    CHECK(at(tokens, 2048) >= last);
    last = at(tokens, 2048);
  }
}

TEST_CASE("profile: beyond the points the analytical shape goes on") {
  const Profile p = profile({point("A0", 32, 1024, 100), point("A0", 64, 1024, 120)});
  const Plan near = decode_plan(128, 1024), far = decode_plan(4096, 1024);
  const CostTable table = profile_costs(far, p, machine());
  const double measured = static_cast<double>(cost_of(far, table, "A0").time.count()) / 120000;
  const double analytical = static_cast<double>(cost_of(far, analytical_costs(far, machine()), "A0").time.count()) /
                            static_cast<double>(cost_of(near, analytical_costs(near, machine()), "A0").time.count());
  CHECK(measured == doctest::Approx(analytical).epsilon(1e-4));
  CHECK(std::any_of(table.assumptions.begin(), table.assumptions.end(), [](const std::string& text) {
    return text.starts_with("Beyond what was measured") && text.find("A0") != std::string::npos;
  }));
}

TEST_CASE("profile: past the measured tokens a time goes straight, over the steps of the analytical cost") {
  // Tiles of 128 tokens; measured are 100 us of 512 tokens, which are 4 tiles.
  const std::vector<Measured> points = {{{0, 132, 0, 512}, 100'000, 1500}};
  const Shape tiles = [](const Place& p) { return std::ceil(p[3] / 128); };
  bool beyond = false;
  const auto us = [&](double tokens) { return interpolate(points, {0, 132, 0, tokens}, tiles, beyond) / 1000; };
  CHECK(us(512) == 100);
  CHECK_FALSE(beyond);
  CHECK(us(520) == doctest::Approx(100 * 520 / 512.0));
  CHECK(beyond);
  CHECK(us(768) == doctest::Approx(150));
  CHECK(us(1024) == doctest::Approx(200));
  CHECK(us(384) == doctest::Approx(75));
  CHECK(us(256) == doctest::Approx(50));
  // Further away the analytical cost is all there is.
  CHECK(us(1025) == doctest::Approx(225));
  CHECK(us(1) == doctest::Approx(25));
}

TEST_CASE("profile: an exchange measured inside a node goes on to other batches as it does there") {
  // Two ranks were measured at the plan's size, sixteen only at 8 times that: 2 of them are worth more. Wires between
  // nodes are no part of what is carried over; the kernel lasts as long as the slower of both.
  const auto comm = [](int ranks, int tokens, double us) {
    ProfilePoint p = point("D", tokens, 0, us);
    p.transport = Transport::LsaHt;
    p.ranks = ranks;
    return p;
  };
  const Plan plan = decode_plan(128, 1024, Transport::LsaHt, 16);
  const Ns wire = cost_of(plan, analytical_costs(plan, machine()), "D").time;
  const double wire_us = static_cast<double>(wire.count()) / 1000;
  const auto priced = [&](double us) {
    const Profile p = profile({comm(2, 32, us), comm(2, 128, us), comm(16, 512, 8 * us)});
    return static_cast<double>(cost_of(plan, profile_costs(plan, p, machine()), "D").time.count()) / 1000;
  };
  CHECK(priced(0.05 * wire_us) == doctest::Approx(wire_us));
  // 15 of 16 copies leave a rank instead of a half, and deduplicated a token has up to 8 destinations instead of 2.
  CHECK(priced(2 * wire_us) > 2 * wire_us);
  CHECK(priced(2 * wire_us) < 2 * 8 * wire_us);
}

TEST_CASE("profile: ops that were not measured are analytical and named") {
  const Plan plan = decode_plan(128, 1024);
  const CostTable table = profile_costs(plan, profile({point("A0", 64, 1024, 100)}), machine());
  const CostTable plain = analytical_costs(plan, machine());
  CHECK(cost_of(plan, table, "MLP").time == cost_of(plan, plain, "MLP").time);
  CHECK(cost_of(plan, table, "A0").time == Ns{100000});
  CHECK(table.assumptions.front() == "Op times come from p.json, measured on NVIDIA H200 on 2026-11-30.");
  CHECK(std::any_of(table.assumptions.begin(), table.assumptions.end(), [](const std::string& text) {
    return text.starts_with("Not in the profile") && text.find("MLP") != std::string::npos &&
           text.find("A0,") == std::string::npos;
  }));
}

TEST_CASE("profile: halves of an exchange, its wire and its company are measured apart") {
  const auto comm = [](std::string_view op, double us, std::string beside = {}) {
    ProfilePoint p = point(op, 64, 0, us);
    p.transport = Transport::LsaLl;
    p.ranks = 8;
    p.beside_sms = beside.empty() ? 0 : 132;
    p.beside = std::move(beside);
    return p;
  };
  Plan plan = decode_plan(128, 1024);
  plan.sm = {SmControl::Limit, 0, 132, 0};
  const CostTable table = profile_costs(
      plan, profile({comm("D.send", 9), comm("D.recv", 7), comm("D.wire", 21), comm("D.recv", 8.4, "A1")}), machine());
  CHECK(cost_of(plan, table, "D.send").time == Ns{9000});
  CHECK(cost_of(plan, table, "D.recv").time == Ns{7000});
  CHECK(cost_of(plan, table, "D.recv").wire == Ns{21000});
  CHECK(cost_of(plan, table, "D.recv").beside == Ns{8400});
  // Another transport's points say nothing about this one's.
  const Plan other = decode_plan(128, 1024, Transport::LsaHt);
  const CostTable apart = profile_costs(other, profile({comm("D.send", 9)}), machine());
  CHECK(cost_of(other, apart, "D").time == cost_of(other, analytical_costs(other, machine()), "D").time);
}

TEST_CASE("profile: an exchange measured on two GPUs is carried over to more") {
  ProfilePoint p = point("D.send", 64, 0, 9);
  p.transport = Transport::LsaLl;
  p.ranks = 2;
  const Plan two = decode_plan(128, 1024, Transport::LsaLl, 2), eight = decode_plan(128, 1024, Transport::LsaLl, 8);
  CHECK(cost_of(two, profile_costs(two, profile({p}), machine()), "D.send").time == Ns{9000});
  // Seven eighths of the copies leave a rank instead of a half.
  CHECK(cost_of(eight, profile_costs(eight, profile({p}), machine()), "D.send").time > Ns{9000});
}

TEST_CASE("profile: what was measured inside a node says nothing of wires between nodes") {
  const auto comm = [](std::string_view op, Transport transport, double us) {
    ProfilePoint p = point(op, 64, 0, us);
    p.transport = transport;
    p.ranks = 16;
    return p;
  };
  const Plan halves = decode_plan(128, 1024, Transport::LsaLl, 16),
             whole = decode_plan(128, 1024, Transport::LsaHt, 16);
  Profile p = profile({comm("D.send", Transport::LsaLl, 9), comm("D.recv", Transport::LsaLl, 7),
                       comm("D.wire", Transport::LsaLl, 0.5), comm("D", Transport::LsaHt, 0.5),
                       comm("C", Transport::LsaHt, 9000)});
  const CostTable analytical = analytical_costs(halves, machine()), kernels = analytical_costs(whole, machine());
  const CostTable within = profile_costs(halves, p, machine()), comm_kernels = profile_costs(whole, p, machine());
  CHECK(cost_of(halves, within, "D.send").time == Ns{9000});
  CHECK(cost_of(halves, within, "D.recv").time == Ns{7000});
  CHECK(cost_of(halves, within, "D.recv").wire == cost_of(halves, analytical, "D.recv").wire);
  CHECK(cost_of(halves, within, "D.recv").wire > Ns{500});
  CHECK(std::any_of(within.assumptions.begin(), within.assumptions.end(),
                    [](const std::string& text) { return text.find("inside a node") != std::string::npos; }));
  // A comm kernel is as slow as the slower of its kernel and its wire.
  CHECK(cost_of(whole, comm_kernels, "D").time == cost_of(whole, kernels, "D").time);
  CHECK(cost_of(whole, comm_kernels, "C").time == Ns{9'000'000});
  // A profile of several nodes has wires between them.
  p.machine.nodes = 2;
  CHECK(cost_of(halves, profile_costs(halves, p, machine()), "D.recv").wire == Ns{500});
}

TEST_CASE("profile: unequal requests are carried by the analytical cost") {
  const Profile p = profile({point("A1", 64, 1024, 80), point("A1", 64, 4096, 140)});
  Plan plan = decode_plan(128, 2048);
  const Ns even = cost_of(plan, profile_costs(plan, p, machine()), "A1").time;
  for (std::size_t r = 0; r < 64; ++r)
    plan.loads[0].ubatches[0].seq_lens[r] = r % 2 == 0 ? 1024 : 3072;  // the same mean
  const Ns uneven = cost_of(plan, profile_costs(plan, p, machine()), "A1").time;
  CHECK(std::abs(static_cast<double>((uneven - even).count())) < 0.01 * static_cast<double>(even.count()));
}

TEST_CASE("profile: another model, GPU or tensor parallelism is an error") {
  const Plan plan = decode_plan(128, 1024);
  Profile p = profile({});
  p.shape.hidden = 4096;
  CHECK_THROWS_WITH_AS(profile_costs(plan, p, machine()),
                       "p.json: /shape: was measured for another model (deepseek-v2-lite, hidden 4096), not for "
                       "deepseek-v2-lite, hidden 2048",
                       InputError);
  p = profile({});
  p.machine.preset = "b200-sxm";
  CHECK_THROWS_AS(profile_costs(plan, p, machine()), InputError);
  p = profile({});
  p.tensor_parallel = 2;
  CHECK_THROWS_AS(profile_costs(plan, p, machine()), InputError);
  p = profile({});
  p.shape.layers = 4;  // fewer layers of the same model are fine
  CHECK_NOTHROW(profile_costs(plan, p, machine()));
}

TEST_CASE("profile: partition and contention cost are told apart") {
  ProfilePoint whole = point("MLP", 512, 0, 100), part = whole, beside = whole;
  whole.experts = part.experts = beside.experts = 8;
  part.sms = beside.sms = 116;
  part.median_us = 110;
  beside.median_us = 121;
  beside.beside = "D";
  beside.beside_sms = 16;
  const std::vector<PairCost> pairs = pair_costs(profile({whole, part, beside}));
  REQUIRE(pairs.size() == 1);
  CHECK(pairs[0].op == "MLP");
  CHECK(pairs[0].beside == "D");
  CHECK(pairs[0].partition == doctest::Approx(1.1));
  CHECK(pairs[0].contention == doctest::Approx(1.1));
}

TEST_CASE("profile: those that ship are named by GPU and model, and were measured on them") {
  REQUIRE(shipped_profile_names().size() >= 2);
  for (const std::string_view name : shipped_profile_names()) {
    INFO(name);
    const std::size_t dot = name.find('.');
    const auto found = shipped_profile(name.substr(0, dot), name.substr(dot + 1));
    REQUIRE(found);
    CHECK(found->machine.preset == name.substr(0, dot));
    CHECK(found->shape.name == name.substr(dot + 1));
    CHECK(found->host);
    for (const std::string_view op : {"A0", "A1", "MLP", "S", "FFN", "HEAD", "D", "C", "D.send", "C.recv"})
      CHECK(std::any_of(found->points.begin(), found->points.end(),
                        [&](const ProfilePoint& point) { return point.op == op; }));
  }
  CHECK_FALSE(shipped_profile("h200-sxm", "mixtral-8x7b"));
}

TEST_CASE("profile: a neighbour measured on both sides of the tokens is preferred, and projections see no context") {
  // 64 tokens with context 2000: 20 us at context 1000 and 40 at 3000. What was measured of 16 tokens at 2000 itself is
  // not stretched to 64.
  const Plan plan = decode_plan(128, 2000);
  const CostTable table =
      profile_costs(plan,
                    profile({point("A1", 32, 1000, 10), point("A1", 96, 1000, 30), point("A1", 16, 2000, 100),
                             point("A1", 32, 3000, 30), point("A1", 96, 3000, 50), point("A0", 32, 1000, 8),
                             point("A0", 96, 1000, 12)}),
                    machine());
  CHECK(cost_of(plan, table, "A1").time == Ns{30'000});
  CHECK(cost_of(plan, table, "A0").time == Ns{10'000});
}

TEST_CASE("profile: experts are looked up between numbers of them measured on both sides, if for other rows") {
  // 8 experts of a rank with 48 rows (6 for each of 8 tokens): 4 were measured with 32 and 128 rows, 16 with 256 alone.
  // What 16 take with 48 the analytical cost says; it is not asked what twice as many experts as 4 take.
  const auto mlp = [](int experts, int rows, double us) {
    ProfilePoint p = point("MLP", rows, 0, us);
    p.transport = Transport::LsaHt;
    p.experts = experts;
    return p;
  };
  const auto priced = [&](int experts, std::vector<ProfilePoint> points) {
    const Plan plan = decode_plan(16, 1024, Transport::LsaHt, 64 / experts);
    const CostTable costs = profile_costs(plan, profile(std::move(points)), machine());
    return static_cast<double>(cost_of(plan, costs, "MLP").time.count());
  };
  const double sixteen = priced(16, {mlp(16, 256, 160)});
  CHECK(sixteen < 160'000);
  const double between = priced(8, {mlp(4, 32, 40), mlp(4, 128, 40), mlp(16, 256, 160)});
  CHECK(between == doctest::Approx(40'000 + (sixteen - 40'000) * (8 - 4) / (16 - 4)).epsilon(5e-3));
}

TEST_CASE("profile: attention of prompts is looked up among the lengths that its number of tokens was measured with") {
  const auto at = [](double context, double tokens, double us) {
    return Measured{{0, 132, context, tokens}, us * 1000, 1500 + us};
  };
  // Lengths are those of a calibration: one for all, the number of tokens itself, and that behind as much again.
  std::vector<Measured> points = {at(1000, 2000, 10), at(1000, 2500, 12), at(1000, 4000, 20),  at(2000, 2000, 14),
                                  at(4000, 4000, 44), at(6000, 2000, 30), at(12000, 4000, 100)};
  const Shape none = [](const Place&) -> double { throw std::logic_error("nothing lies beyond"); };
  bool beyond = false;
  // 2000 tokens of length 3000: 14 us + 16 / 4; 4000: 20 us + 24 * 2 / 3. What was measured of 2500 at length 1000 is
  // not stretched.
  const Place asked{0, 132, 3000, 3000};
  CHECK(interpolate(points, asked, none, beyond, Innermost::Context) == doctest::Approx((18'000 + 36'000) / 2.0));
  CHECK(interpolate_clock(points, asked, Innermost::Context) == doctest::Approx(1500 + 27));
  CHECK_FALSE(beyond);
  // Where that is all there is, the size in between is used.
  CHECK(interpolate(points, {0, 132, 1000, 2500}, none, beyond, Innermost::Context) == doctest::Approx(12'000));
}

TEST_CASE("profile: attention of a layer without experts takes what one with experts does, less choosing them") {
  Plan plan = decode_plan(128, 1000);
  REQUIRE(plan.shape.dense_layers == 1);
  const OpId a1 = *plan.find_op("A1");
  const auto in_layer = [&](const CostTable& table, int layer) {
    return table.at(0, table.layer_class(layer), 0, a1).time;
  };
  const CostTable priced = analytical_costs(plan, machine());
  const Ns choosing = in_layer(priced, 5) - in_layer(priced, 0);
  REQUIRE(choosing > Ns{0});
  // Three times what the model says: the difference stays.
  const double us = 3 * static_cast<double>(in_layer(priced, 5).count()) / 1000;
  const CostTable table = profile_costs(plan, profile({point("A1", 64, 1000, us)}), machine());
  CHECK(in_layer(table, 5).count() == doctest::Approx(1000 * us).epsilon(1e-6));
  // To the nanosecond that both are rounded to.
  const Ns difference = in_layer(table, 5) - in_layer(table, 0);
  CHECK(std::abs((difference - choosing).count()) <= 1);
}

TEST_CASE("profile: eagerly an op's kernels lie further apart by the gaps of eager launches") {
  Plan plan = decode_plan(128, 1000);
  Profile measured = profile({point("A1", 64, 1000, 20)});
  HostCosts host;
  host.node_gap = Ns{1000};
  host.eager_node_gap = Ns{2500};
  measured.host = host;
  measured.fits = {{"kernels of A1", "kernels", {{"kernels", 5}}, 0, 1}};
  CHECK(profile_kernels(measured, "A1") == 5);
  CHECK(!profile_kernels(measured, "A0"));
  plan.execution = Execution::Graph;
  CHECK(cost_of(plan, profile_costs(plan, measured, machine()), "A1").time == Ns{20'000});
  // Four gaps of 1.5 us more each.
  plan.execution = Execution::Eager;
  CHECK(cost_of(plan, profile_costs(plan, measured, machine()), "A1").time == Ns{26'000});
}

TEST_CASE("profile: what communication costs computation is spread over the time a slower fabric takes") {
  // 16 ranks on two nodes; inside one, dispatch and combine took 2 us each, and A1 ran in 40 us beside them, else 20.
  Plan plan = decode_plan(128, 1000, Transport::LsaHt, 16);
  plan.sm = {SmControl::Limit, 20, 112, 0};
  const auto [d, c] = short_exchange(plan);
  ProfilePoint beside = point("A1", 64, 1000, 40);
  ProfilePoint alone = point("A1", 64, 1000, 20);
  alone.sms = beside.sms = plan.sm.compute;
  beside.beside = "D+C";
  beside.beside_sms = plan.sm.comm;
  const CostTable table = profile_costs(plan, profile({d, c, alone, beside}), machine());
  const OpCost a1 = cost_of(plan, table, "A1");
  CHECK(a1.time == Ns{20'000});
  const auto held = static_cast<double>((cost_of(plan, table, "D").time + cost_of(plan, table, "C").time).count());
  CHECK(held > 4000);
  CHECK(static_cast<double>((a1.beside - a1.time).count()) == doctest::Approx(20'000 * 4000 / held).epsilon(1e-3));
  // A kernel that waits for the fabric is not slowed by computation.
  CHECK(cost_of(plan, table, "D").beside == cost_of(plan, table, "D").time);
}
