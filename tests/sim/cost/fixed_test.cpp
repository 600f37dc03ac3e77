#include "sim/cost/fixed.h"

#include <doctest/doctest.h>

#include <filesystem>

#include "sim/base/error.h"
#include "sim/base/files.h"
#include "sim/cost/host_costs.h"

using namespace dbo;

namespace {

/// A plan with one op of each kind named and nothing that runs; two ubatches on two ranks.
Plan plan_with(std::initializer_list<OpKind> kinds) {
  Plan plan;
  plan.world = {.ranks = 2, .ranks_per_node = 2};
  plan.shape.layers = 3;
  for (const OpKind kind : kinds) {
    OpDef op;
    op.name = op_name(kind);
    op.kind = kind;
    plan.ops.push_back(op);
  }
  plan.threads = {{.ubatch = 0, .body = {}}, {.ubatch = 1, .body = {}}};
  return plan;
}

FixedCosts costs_from(std::string_view text) {
  ObjectReader reader{JsonRef(json_document(text, "c.json"))};
  const FixedCosts costs = read_fixed_costs(reader);
  reader.done();
  return costs;
}

constexpr std::string_view kTeaching = R"({"A0_us": 40, "A1_us": 60.0004, "MLP_us": 80, "S_us": 20, "FFN_us": 7,
  "D": {"send_us": 2, "wire_us": 60, "recv_us": 3}, "C": {"send_us": 4, "wire_us": 70, "recv_us": 5, "copy_us": 6},
  "host_us": 1.5})";

/// Writes `text` to a file of its own and reads costs from it.
CostTable from_file(const Plan& plan, std::string_view text) {
  const std::string path = (std::filesystem::temp_directory_path() / "dbo_fixed_test.json").string();
  write_file(path, text);
  const auto remove = [&] { std::filesystem::remove(path); };
  try {
    CostTable table = costs_from_file(plan, path);
    remove();
    return table;
  } catch (...) {
    remove();
    throw;
  }
}

std::string error_of(const Plan& plan, std::string_view text) {
  try {
    from_file(plan, text);
  } catch (const InputError& error) {
    return error.pointer() + ": " + error.message();
  }
  return "no error";
}

}  // namespace

TEST_CASE("fixed: halves of an exchange go to send and receive, the wire to the receive") {
  const Plan plan = plan_with(
      {OpKind::A0, OpKind::A1, OpKind::DSend, OpKind::DRecv, OpKind::CSend, OpKind::CRecv, OpKind::FFN, OpKind::HEAD});
  const CostTable table = fixed_costs(plan, costs_from(kTeaching));
  CHECK(table.ubatches() == 2);
  const auto at = [&](std::string_view name, int ubatch) {
    for (OpId op = 0; op < plan.ops.size(); ++op)
      if (plan.ops[op].name == name) return table.at(0, 0, ubatch, op);
    return OpCost{};
  };
  for (const int ubatch : {0, 1}) {
    CHECK(at("A0", ubatch).time == Ns{40000});
    CHECK(at("A1", ubatch).time == Ns{60000});
    CHECK(at("D.send", ubatch).time == Ns{2000});
    CHECK(at("D.send", ubatch).wire == Ns{0});
    CHECK(at("D.recv", ubatch).time == Ns{3000});
    CHECK(at("D.recv", ubatch).wire == Ns{60000});
    CHECK(at("C.recv", ubatch).time == Ns{5000});
    CHECK(at("C.recv", ubatch).wire == Ns{70000});
    CHECK(at("FFN", ubatch).time == Ns{7000});
    CHECK(at("HEAD", ubatch).time == Ns{0});
  }
  CHECK(table.host.launch == Ns{1500});
  CHECK(table.host.yield == Ns{0});
  CHECK_FALSE(table.host_blocks);
}

TEST_CASE("fixed: a comm kernel lasts send, wire and receive; the copy is an op of its own") {
  const Plan plan = plan_with({OpKind::D, OpKind::C, OpKind::CCopy});
  const CostTable table = fixed_costs(plan, costs_from(kTeaching));
  CHECK(table.at(0, 0, 0, 0).time == Ns{65000});
  CHECK(table.at(0, 0, 0, 1).time == Ns{79000});
  CHECK(table.at(0, 0, 0, 2).time == Ns{6000});
  CHECK(table.at(0, 0, 0, 0).wire == Ns{0});
}

TEST_CASE("fixed: the un-split batch takes as long as its ubatches together, host time aside") {
  Plan plan = plan_with({OpKind::MLP, OpKind::CRecv});
  plan.threads.resize(1);
  const CostTable table = fixed_costs(plan, costs_from(kTeaching), {3});
  CHECK(table.ubatches() == 1);
  CHECK(table.at(0, 0, 0, 0).time == Ns{240000});
  CHECK(table.at(0, 0, 0, 1).time == Ns{15000});
  CHECK(table.at(0, 0, 0, 1).wire == Ns{210000});
  CHECK(table.host.launch == Ns{1500});
}

TEST_CASE("fixed: absent durations are 0 and wrong ones name their place") {
  CHECK(costs_from("{}") == FixedCosts{});
  const auto error = [](std::string_view text) {
    try {
      costs_from(text);
    } catch (const InputError& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  CHECK(error(R"({"A0_us": -1})") == "c.json: /A0_us: must be a number from 0 to 1e+09, is -1");
  CHECK(error(R"({"D": {"copy_us": 1}})").starts_with("c.json: /D/copy_us: unknown key \"copy_us\""));
}

TEST_CASE("costs file: by kind, or op by op with single launches") {
  Plan plan = plan_with({OpKind::A0, OpKind::DRecv});
  OpDef gemm;
  gemm.name = "gemm_1";
  plan.ops.push_back(gemm);
  plan.lanes = {"compute"};
  for (const OpId op : {OpId{0}, OpId{2}, OpId{2}}) {
    Instruction launch;
    launch.verb = Verb::Launch;
    launch.op.op = op;
    plan.threads[0].body.push_back(launch);
  }
  RankClass one;
  one.threads = {0};
  plan.classes = {one};
  CHECK(from_file(plan, R"({"source": "fixed", "A0_us": 3})").at(0, 0, 1, 0).time == Ns{3000});

  const CostTable table = from_file(plan, R"({"source": "ops", "ops": {"gemm_1": 2.5, "D.recv": {"time_us": 1,
    "wire_us": 9}}, "launches_us": [1, null, 2.0005], "host": {"launch_us": 4}})");
  CHECK(table.at(0, 0, 0, 2).time == Ns{2500});
  CHECK(table.at(0, 0, 1, 1).wire == Ns{9000});
  CHECK(table.at(0, 0, 1, 0).time == Ns{0});
  CHECK(table.by_plan_op == std::vector<Ns>{Ns{1000}, Ns{-1}, Ns{2001}});
  CHECK(table.host.launch == Ns{4000});
  CHECK(table.host_blocks);

  CHECK(error_of(plan, R"({"source": "ops", "launches_us": [1, 2]})") ==
        "/launches_us: must have one time for each of the plan's 3 launches, has 2");
  CHECK(error_of(plan, R"({"source": "ops", "ops": {"gemm_2": 1}})").starts_with("/ops/gemm_2: unknown key"));
  CHECK(error_of(plan, R"({"source": "ops"})") == "/: needs \"ops\" or \"launches_us\"");
  CHECK(error_of(plan, R"({"source": "profil"})").starts_with("/source: unknown source of costs \"profil\""));
}

TEST_CASE("host costs: presets, and stated numbers over the cpp preset") {
  CHECK(host_preset("python").launch > host_preset("cpp").launch);
  CHECK(host_preset("python").node_gap == host_preset("cpp").node_gap);
  const HostCosts own = read_host_costs(JsonRef(json_document(std::string_view(R"({"launch_us": 0.25})"), "h.json")));
  CHECK(own.launch == Ns{250});
  CHECK(own.yield == host_preset("cpp").yield);
  CHECK_THROWS_WITH_AS(read_host_costs(JsonRef(json_document(std::string_view("\"pyton\""), "h.json"))),
                       "h.json: /: unknown host \"pyton\" (known: cpp, python; did you mean \"python\"?)", InputError);
}

TEST_CASE("host costs: launches that were issued in time follow each other no closer than a graph's, or as stated") {
  for (const std::string_view name : host_preset_names()) {
    const HostCosts host = host_preset(name);
    CAPTURE(name);
    CHECK(host.eager_node_gap >= host.node_gap);
    CHECK(host.eager_lane_gap > Ns{0});
  }
  const auto read = [](std::string_view text) { return read_host_costs(JsonRef(json_document(text, "h.json"))); };
  CHECK(read(R"({"node_gap_us": 0})").eager_node_gap == Ns{0});
  CHECK(read(R"({"lane_gap_us": 3})").eager_lane_gap == Ns{3000});
  CHECK(read(R"({"launch_us": 1})").eager_node_gap == host_preset("cpp").eager_node_gap);
}
