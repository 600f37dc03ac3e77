#include <algorithm>
#include <tuple>

#include "sim/base/data_file.h"
#include "sim/base/error.h"
#include "sim/cost/profile.h"
#include "sim/model/presets.h"
#include "sim/plan/shape_json.h"

namespace dbo {

extern const DataFile kProfileData[];
extern const unsigned kProfileData_count;
namespace {

constexpr double kMaxUs = 1e9;

std::vector<std::string_view> point_names() {
  std::vector<std::string_view> names;
  for (int kind = 0; kind < kOpKinds; ++kind)
    if (static_cast<OpKind>(kind) != OpKind::Other) names.push_back(op_name(static_cast<OpKind>(kind)));
  names.emplace_back("D.notify");
  return names;
}

bool is_communication(std::string_view op) {
  const auto kind = find_op_kind(op);
  return !kind || is_comm(*kind);
}

std::string text_of(ObjectReader& reader, std::string_view key) {
  const auto value = reader.find(key);
  return value ? value->string() : std::string();
}

/// No GPU clocks so high.
constexpr std::int64_t kMaxMhz = 10'000;

int int_of(ObjectReader& reader, std::string_view key, int otherwise, std::int64_t low = 0) {
  const auto value = reader.find(key);
  return value ? static_cast<int>(value->integer(low, 1 << 30)) : otherwise;
}

ProfileMachine read_machine(const JsonRef& ref) {
  ObjectReader reader(ref, "an object that describes the machine");
  ProfileMachine machine;
  machine.gpu = reader.require("gpu").string();
  if (const auto preset = reader.find("preset")) machine.preset = gpu_names()[preset->one_of(gpu_names(), "gpu")];
  machine.gpus = int_of(reader, "gpus", 1, 1);
  machine.nodes = int_of(reader, "nodes", 1, 1);
  machine.driver = text_of(reader, "driver");
  machine.cuda = text_of(reader, "cuda");
  machine.nccl = text_of(reader, "nccl");
  machine.cublas = text_of(reader, "cublas");
  if (const auto mhz = reader.find("sm_clock_mhz")) machine.sm_clock_mhz = static_cast<int>(mhz->integer(0, kMaxMhz));
  machine.memory_clock_mhz = int_of(reader, "memory_clock_mhz", 0);
  reader.done();
  return machine;
}

}  // namespace

ProfilePoint profile_point_from_json(const JsonRef& ref) {
  ObjectReader reader(ref, "an object that describes a measurement");
  ProfilePoint point;
  const JsonRef op = reader.require("op");
  point.op = point_names()[op.one_of(point_names(), "op")];
  const bool comm = is_communication(point.op);
  if (const auto phase = reader.find("phase")) point.prefill = phase->one_of({"decode", "prefill"}, "phase") == 1;
  const auto transport = comm ? std::optional<JsonRef>(reader.require("transport")) : reader.find("transport");
  if (transport) point.transport = transports()[transport->one_of(transport_names(), "transport")].id;
  if (comm) reader.require("ranks");
  point.ranks = int_of(reader, "ranks", 0, comm ? 2 : 0);
  if (point.op == "MLP") reader.require("experts");
  point.experts = int_of(reader, "experts", 0, point.op == "MLP" ? 1 : 0);
  point.tokens = reader.require("tokens").count(1);
  if (const auto context = reader.find("context")) point.context = context->count(0);
  point.sms = static_cast<int>(reader.require("sms").integer(0, 1 << 16));
  point.precision = static_cast<Precision>(reader.require("precision").one_of(precision_names(), "precision"));
  point.beside = text_of(reader, "beside");
  point.beside_sms = int_of(reader, "beside_sms", 0);
  if (const auto duty = reader.find("duty")) point.duty = static_cast<int>(duty->integer(1, 100));
  point.median_us = reader.require("median_us").number(0, kMaxUs);
  point.spread_us = reader.require("spread_us").number(0, kMaxUs);
  point.repeats = static_cast<int>(reader.require("repeats").integer(1, 1 << 30));
  if (const auto mhz = reader.find("sm_mhz")) point.sm_mhz = static_cast<int>(mhz->integer(0, kMaxMhz));
  reader.done();
  return point;
}

namespace {

/// What tells two points apart.
auto key_of(const ProfilePoint& p) {
  return std::tie(p.op, p.prefill, p.transport, p.ranks, p.experts, p.tokens, p.context, p.sms, p.precision, p.beside,
                  p.beside_sms, p.duty);
}

void read_points(const JsonRef& ref, Profile& profile) {
  std::vector<std::size_t> order;
  const std::vector<JsonRef> items = ref.items();
  for (const JsonRef& item : items) {
    order.push_back(profile.points.size());
    profile.points.push_back(profile_point_from_json(item));
  }
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const auto key_a = key_of(profile.points[a]), key_b = key_of(profile.points[b]);
    return key_a < key_b || (!(key_b < key_a) && a < b);
  });
  for (std::size_t i = 1; i < order.size(); ++i)
    if (key_of(profile.points[order[i - 1]]) == key_of(profile.points[order[i]]))
      items[order[i]].fail("is the same measurement as point " + std::to_string(order[i - 1]) +
                           "; give its median once");
}

HostCosts read_host(const JsonRef& ref) {
  ObjectReader reader(ref, "an object of times");
  HostCosts host;
  const std::pair<std::string_view, Ns*> keys[] = {{"launch_us", &host.launch},
                                                   {"record_us", &host.record},
                                                   {"wait_us", &host.wait},
                                                   {"yield_us", &host.yield},
                                                   {"graph_launch_us", &host.graph_launch},
                                                   {"node_gap_us", &host.node_gap},
                                                   {"lane_gap_us", &host.lane_gap}};
  for (const auto& [key, field] : keys) *field = ns_from_us(reader.require(key).number(0, kMaxUs));
  const auto optional = [&](std::string_view key, Ns& field) {
    if (const auto value = reader.find(key)) field = ns_from_us(value->number(0, kMaxUs));
  };
  optional("eager_node_gap_us", host.eager_node_gap);
  optional("eager_lane_gap_us", host.eager_lane_gap);
  reader.done();
  return host;
}

ProfileFit read_fit(const JsonRef& ref) {
  ObjectReader reader(ref, "an object that describes a fit");
  ProfileFit fit;
  fit.what = reader.require("what").string();
  fit.formula = reader.require("formula").string();
  const JsonRef parameters = reader.require("parameters");
  if (!parameters.value().is_object()) parameters.fail_type("an object of numbers");
  for (const Json::Member& member : parameters.value().members())
    fit.parameters.emplace_back(member.first, JsonRef(parameters, member.second).number(-1e18, 1e18));
  fit.residual = reader.require("residual").number(0, 1e9);
  fit.points = static_cast<int>(reader.require("points").integer(1, 1 << 30));
  reader.done();
  return fit;
}

void check_date(const JsonRef& ref) {
  const std::string& date = ref.string();
  bool good = date.size() == 10;
  for (std::size_t i = 0; good && i < date.size(); ++i)
    good = i == 4 || i == 7 ? date[i] == '-' : date[i] >= '0' && date[i] <= '9';
  if (!good) ref.fail_type("a date like 2026-11-30");
}

Json machine_to_json(const ProfileMachine& m) {
  Json out;
  out.set("gpu", m.gpu);
  if (!m.preset.empty()) out.set("preset", m.preset);
  out.set("gpus", m.gpus);
  if (m.nodes != 1) out.set("nodes", m.nodes);
  for (const auto& [key, text] :
       {std::pair{"driver", &m.driver}, {"cuda", &m.cuda}, {"nccl", &m.nccl}, {"cublas", &m.cublas}})
    if (!text->empty()) out.set(key, *text);
  if (m.sm_clock_mhz > 0) out.set("sm_clock_mhz", m.sm_clock_mhz);
  if (m.memory_clock_mhz > 0) out.set("memory_clock_mhz", m.memory_clock_mhz);
  return out;
}

}  // namespace

Json profile_point_to_json(const ProfilePoint& p) {
  Json out;
  out.set("op", p.op);
  if (p.prefill) out.set("phase", "prefill");
  if (p.transport) out.set("transport", transport_info(*p.transport).name);
  if (p.ranks > 0) out.set("ranks", p.ranks);
  if (p.experts > 0) out.set("experts", p.experts);
  out.set("tokens", p.tokens);
  if (p.context > 0) out.set("context", p.context);
  out.set("sms", p.sms);
  out.set("precision", precision_name(p.precision));
  if (!p.beside.empty()) out.set("beside", p.beside);
  if (p.beside_sms > 0) out.set("beside_sms", p.beside_sms);
  if (p.duty < 100) out.set("duty", p.duty);
  out.set("median_us", p.median_us);
  out.set("spread_us", p.spread_us);
  out.set("repeats", p.repeats);
  if (p.sm_mhz > 0) out.set("sm_mhz", p.sm_mhz);
  return out;
}

namespace {

Json host_to_json(const HostCosts& host) {
  Json out;
  const auto set = [&](std::string_view key, Ns time) { out.set(key, static_cast<double>(time.count()) / 1000.0); };
  set("launch_us", host.launch);
  set("record_us", host.record);
  set("wait_us", host.wait);
  set("yield_us", host.yield);
  set("graph_launch_us", host.graph_launch);
  set("node_gap_us", host.node_gap);
  set("lane_gap_us", host.lane_gap);
  if (host.eager_node_gap > Ns{}) set("eager_node_gap_us", host.eager_node_gap);
  if (host.eager_lane_gap > Ns{}) set("eager_lane_gap_us", host.eager_lane_gap);
  return out;
}

Json fit_to_json(const ProfileFit& fit) {
  Json out, parameters = Json::object();
  for (const auto& [name, value] : fit.parameters) parameters.set(name, value);
  out.set("what", fit.what);
  out.set("formula", fit.formula);
  out.set("parameters", std::move(parameters));
  out.set("residual", fit.residual);
  out.set("points", fit.points);
  return out;
}

}  // namespace

Profile profile_from_json(const JsonRef& ref) {
  ObjectReader reader(ref, "a profile");
  Profile profile;
  profile.file = ref.file();
  reader.require("format").integer(1, 1);
  profile.machine = read_machine(reader.require("machine"));
  const JsonRef date = reader.require("date");
  check_date(date);
  profile.date = date.string();
  profile.shape = shape_from_json(reader.require("shape"));
  profile.tensor_parallel = int_of(reader, "tensor", 1, 1);
  read_points(reader.require("points"), profile);
  if (const auto host = reader.find("host")) profile.host = read_host(*host);
  if (const auto fits = reader.find("fits"))
    for (const JsonRef& fit : fits->items()) profile.fits.push_back(read_fit(fit));
  if (const auto pairs = reader.find("pairs")) pairs->items();  // written for people; worked out again from the points
  reader.done();
  return profile;
}

Profile load_profile(const std::string& path) {
  return profile_from_json(JsonRef(load_json(path)));
}

std::optional<Profile> shipped_profile(std::string_view gpu, std::string_view model) {
  const std::string name = std::string(gpu) + "." + std::string(model);
  for (unsigned i = 0; i < kProfileData_count; ++i) {
    if (kProfileData[i].name == name)
      return profile_from_json(JsonRef(json_document(kProfileData[i].text, "the shipped profile " + name)));
  }
  return std::nullopt;
}

std::vector<std::string_view> shipped_profile_names() {
  std::vector<std::string_view> names;
  for (unsigned i = 0; i < kProfileData_count; ++i) names.push_back(kProfileData[i].name);
  return names;
}

Json profile_to_json(const Profile& profile) {
  Json out;
  out.set("format", 1);
  out.set("machine", machine_to_json(profile.machine));
  out.set("date", profile.date);
  out.set("shape", shape_to_json(profile.shape));
  out.set("tensor", profile.tensor_parallel);
  Json points = Json::array(), fits = Json::array(), pairs = Json::array();
  for (const ProfilePoint& point : profile.points) points.push(profile_point_to_json(point));
  for (const ProfileFit& fit : profile.fits) fits.push(fit_to_json(fit));
  for (const PairCost& pair : pair_costs(profile)) {
    Json item;
    item.set("op", pair.op);
    item.set("beside", pair.beside);
    item.set("tokens", pair.tokens);
    item.set("context", pair.context);
    item.set("sms", pair.sms);
    item.set("beside_sms", pair.beside_sms);
    item.set("partition", pair.partition);
    item.set("contention", pair.contention);
    pairs.push(std::move(item));
  }
  out.set("points", std::move(points));
  if (profile.host) out.set("host", host_to_json(*profile.host));
  out.set("pairs", std::move(pairs));
  out.set("fits", std::move(fits));
  return out;
}

std::vector<PairCost> pair_costs(const Profile& profile) {
  std::vector<PairCost> out;
  for (const ProfilePoint& point : profile.points) {
    if (point.beside.empty()) continue;
    const ProfilePoint* alone = nullptr;
    const ProfilePoint* widest = nullptr;
    for (const ProfilePoint& other : profile.points) {
      ProfilePoint like = point;
      like.sms = other.sms;
      like.beside.clear();
      like.beside_sms = 0;
      if (key_of(like) != key_of(other)) continue;
      if (other.sms == point.sms) alone = &other;
      if (widest == nullptr || other.sms > widest->sms) widest = &other;
    }
    if (alone == nullptr || alone->median_us <= 0 || widest->median_us <= 0) continue;
    out.push_back({point.op, point.beside, point.tokens, point.context, point.sms, point.beside_sms,
                   alone->median_us / widest->median_us, point.median_us / alone->median_us});
  }
  return out;
}

}  // namespace dbo
