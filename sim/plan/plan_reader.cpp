#include <algorithm>

#include "sim/base/error.h"
#include "sim/base/files.h"
#include "sim/plan/plan_json.h"
#include "sim/plan/plan_words.h"
#include "sim/plan/shape_json.h"

namespace dbo {
namespace {

using namespace plan_words;

// Limits that keep a damaged file from asking for absurd memory.
constexpr std::int64_t kMaxRanks = 1 << 20;
constexpr std::int64_t kMaxUbatches = 64;
constexpr std::int64_t kMaxLayers = 1 << 16;
constexpr std::int64_t kMaxTokens = std::int64_t{1} << 40;

class PlanReader {
 public:
  explicit PlanReader(const JsonRef& ref) : reader_(ref, "a plan object") {}

  Plan read() {
    reader_.require("format").integer(1, 1);
    const auto hash = reader_.find("hash");
    read_head();
    read_lanes_and_buffers();
    read_ops();
    read_programs();
    read_loads();
    read_classes();
    read_routing(reader_.require("routing"));
    reader_.done();
    if (hash && hash->string() != plan_hash(plan_))
      hash->fail("does not match the plan's content (hash " + plan_hash(plan_) +
                 "); remove the key if the plan was edited by hand");
    return std::move(plan_);
  }

 private:
  static std::vector<std::string_view> names_of(const auto& list) {
    std::vector<std::string_view> names;
    for (const auto& item : list) names.push_back(item.name);
    return names;
  }
  static std::vector<std::string_view> views(const std::vector<std::string>& list) {
    return {list.begin(), list.end()};
  }

  void read_head() {
    ObjectReader world(reader_.require("world"));
    plan_.world.ranks = static_cast<int>(world.require("ranks").integer(1, kMaxRanks));
    plan_.world.ranks_per_node = static_cast<int>(world.require("ranks_per_node").integer(1, kMaxRanks));
    world.done();
    plan_.execution = static_cast<Execution>(reader_.require("execution").one_of(kExecutions, "execution mode"));
    const JsonRef transport = reader_.require("transport");
    plan_.transport = transports()[transport.one_of(transport_names(), "transport")].id;
    plan_.tensor_parallel = static_cast<int>(reader_.require("tensor_parallel").integer(1, kMaxRanks));
    ObjectReader sm(reader_.require("sm"));
    plan_.sm.control = static_cast<SmControl>(sm.require("control").one_of(kSmControls, "SM control"));
    plan_.sm.comm = static_cast<int>(sm.require("comm").integer(0, 1 << 16));
    plan_.sm.compute = static_cast<int>(sm.require("compute").integer(0, 1 << 16));
    plan_.sm.idle = static_cast<int>(sm.require("idle").integer(0, 1 << 16));
    sm.done();
    plan_.shape = shape_from_json(reader_.require("shape"));
  }

  void read_lanes_and_buffers() {
    for (const JsonRef& lane : reader_.require("lanes").items()) {
      const std::string& name = lane.string();
      for (const std::string& other : plan_.lanes)
        if (other == name) lane.fail("lane \"" + name + "\" is listed twice");
      plan_.lanes.push_back(name);
    }
    const JsonRef lanes = reader_.require("lanes");
    if (plan_.lanes.empty() || plan_.lanes.size() > 255) lanes.fail("must list 1 to 255 lanes");
    const JsonRef buffers = reader_.require("buffers");
    if (!buffers.value().is_object()) buffers.fail_type("an object of buffers");
    for (const auto& [name, value] : buffers.value().members()) {
      ObjectReader reader(JsonRef(buffers, value));
      Buffer buffer;
      buffer.name = name;
      buffer.slots = static_cast<int>(reader.require("slots").integer(1, 1 << 16));
      buffer.by = static_cast<SlotBy>(reader.require("by").one_of(kSlotBys, "slot rule"));
      reader.done();
      plan_.buffers.push_back(std::move(buffer));
    }
  }

  void read_ops() {
    const JsonRef ops = reader_.require("ops");
    if (!ops.value().is_object()) ops.fail_type("an object of ops");
    if (ops.value().members().size() > 65535) ops.fail("has more than 65535 ops");
    std::vector<std::optional<JsonRef>> pairs;
    for (const auto& [name, value] : ops.value().members()) {
      const JsonRef ref(ops, value);
      ObjectReader reader(ref);
      OpDef op;
      op.name = name;
      if (const auto kind = reader.find("kind")) {
        const auto found = find_op_kind(kind->string());
        if (!found)
          kind->fail("unknown op kind \"" + kind->string() + "\" " + known_names(kind->string(), kind_names()));
        op.kind = *found;
      } else if (const auto found = find_op_kind(name)) {
        op.kind = *found;
      } else {
        ref.fail("\"" + name + "\" is no op kind " + known_names(name, kind_names()) +
                 "; an op of another name needs \"kind\"");
      }
      if (is_wire(op.kind)) ref.fail("a wire is not launched: it follows from its send");
      check_transport(ref, op);
      op.lane = static_cast<LaneId>(reader.require("lane").one_of(views(plan_.lanes), "lane"));
      op.sms = static_cast<SmPool>(reader.require("sms").one_of(kPools, "SM pool"));
      op.reads = read_buffer_list(reader.require("reads"));
      op.writes = read_buffer_list(reader.require("writes"));
      pairs.push_back(reader.find("pairs"));
      reader.done();
      plan_.ops.push_back(std::move(op));
    }
    for (std::size_t i = 0; i < pairs.size(); ++i) {
      OpDef& op = plan_.ops[i];
      if (pairs[i]) op.pairs = static_cast<OpId>(pairs[i]->one_of(names_of(plan_.ops), "op"));
      if (is_send(op.kind) && (!op.pairs || !is_recv(plan_.ops[*op.pairs].kind)))
        JsonRef(ops, ops.value().members()[i].second).fail("a send needs \"pairs\": the name of its receive");
      if (is_collective(op.kind) && op.pairs != static_cast<OpId>(i))
        JsonRef(ops, ops.value().members()[i].second)
            .fail("a comm kernel that all ranks run together pairs with itself");
    }
  }

  void check_transport(const JsonRef& ref, const OpDef& op) const {
    const TransportInfo& transport = transport_info(plan_.transport);
    const bool halves = is_send(op.kind) || is_recv(op.kind);
    if (!halves && !is_collective(op.kind)) return;
    const TransportClass needed = halves ? TransportClass::LowLatency : TransportClass::HighThroughput;
    if (serves(transport, needed)) return;
    std::string allowed;
    for (const TransportInfo& info : transports())
      if (serves(info, needed)) allowed += (allowed.empty() ? "" : ", ") + std::string(info.name);
    ref.fail("\"" + op.name + "\" is " + (halves ? "a send or receive half" : "one comm op") + ", which transport \"" +
             std::string(transport.name) + "\" does not have (allowed: " + allowed + ")");
  }

  static std::vector<std::string_view> kind_names() {
    std::vector<std::string_view> names;
    for (int i = 0; i < kOpKinds; ++i) names.push_back(op_name(static_cast<OpKind>(i)));
    return names;
  }

  std::vector<BufferId> read_buffer_list(const JsonRef& ref) {
    std::vector<BufferId> ids;
    for (const JsonRef& item : ref.items())
      ids.push_back(static_cast<BufferId>(item.one_of(names_of(plan_.buffers), "buffer")));
    return ids;
  }

  void read_programs() {
    for (const JsonRef& event : reader_.require("events").items()) plan_.events.push_back(event.string());
    const JsonRef blocks = reader_.require("blocks");
    if (!blocks.value().is_object()) blocks.fail_type("an object of blocks");
    for (const auto& [name, value] : blocks.value().members())
      plan_.blocks.push_back({name, read_program(JsonRef(blocks, value), true)});
    for (const JsonRef& item : reader_.require("threads").items()) {
      ObjectReader reader(item);
      Thread thread;
      thread.ubatch = static_cast<int>(reader.require("ubatch").integer(0, kMaxUbatches - 1));
      thread.body = read_program(reader.require("body"), false);
      reader.done();
      plan_.threads.push_back(std::move(thread));
    }
    if (plan_.threads.empty()) reader_.require("threads").fail("must list at least one thread");
    std::int64_t layers = 0;
    for (const Thread& thread : plan_.threads) {
      layers = 0;
      for (const Instruction& i : thread.body)
        if (i.verb == Verb::Repeat) layers += std::int64_t{i.count} * i.stride;
      if (layers > kMaxLayers)
        reader_.require("threads").fail("repeats cover more than " + std::to_string(kMaxLayers) + " layers");
    }
  }

  Program read_program(const JsonRef& ref, bool inside_block) {
    Program program;
    for (const JsonRef& item : ref.items()) program.push_back(read_instruction(item, inside_block));
    return program;
  }

  Instruction read_instruction(const JsonRef& ref, bool inside_block) {
    const std::vector<JsonRef> words = ref.items();
    if (words.empty()) ref.fail("must be an instruction such as [\"launch\", \"A0\"], is []");
    Instruction i;
    i.verb = static_cast<Verb>(words[0].one_of(kVerbs, "instruction"));
    const auto need = [&](std::size_t low, std::size_t high, std::string_view form) {
      if (words.size() < low || words.size() > high)
        ref.fail("must have the form " + std::string(form) + ", is " + value_text(ref.value()));
    };
    switch (i.verb) {
      case Verb::Launch:
        need(2, 3, "[\"launch\", OP] or [\"launch\", OP, {\"u\": UBATCH, \"l\": LAYER_OFFSET}]");
        i.op = read_op_ref(words[1], words.size() > 2 ? &words[2] : nullptr);
        break;
      case Verb::HostWait:
        need(3, 4, "[\"host_wait\", OP, \"notify\" or \"end\"]");
        i.op = read_op_ref(words[1], words.size() > 3 ? &words[3] : nullptr);
        i.notify = words[2].one_of({"notify", "end"}, "host wait") == 0;
        break;
      case Verb::Record:
      case Verb::Wait:
        need(3, 3, "[\"record\" or \"wait\", EVENT, LANE]");
        i.event = static_cast<EventId>(words[1].one_of(views(plan_.events), "event"));
        i.lane = static_cast<LaneId>(words[2].one_of(views(plan_.lanes), "lane"));
        break;
      case Verb::Hook:
        need(2, 2, "[\"hook\", [OP, ...]]");
        for (const JsonRef& item : words[1].items()) {
          if (item.value().is_string()) {
            i.hook.push_back(read_op_ref(item, nullptr));
          } else {
            const std::vector<JsonRef> parts = item.items();
            if (parts.size() != 2) item.fail("must be an op or [OP, {\"u\": UBATCH, \"l\": LAYER_OFFSET}]");
            i.hook.push_back(read_op_ref(parts[0], &parts[1]));
          }
        }
        break;
      case Verb::Repeat:
      case Verb::Block:
        if (inside_block) ref.fail("a block cannot hold another block or repeat");
        need(i.verb == Verb::Repeat ? 3 : 2, i.verb == Verb::Repeat ? 4 : 2,
             "[\"repeat\", N, BLOCK, LAYERS_AN_ITERATION] or [\"block\", BLOCK]");
        if (i.verb == Verb::Repeat) {
          i.count = static_cast<std::int32_t>(words[1].integer(0, kMaxLayers));
          if (words.size() > 3) i.stride = static_cast<std::int32_t>(words[3].integer(1, 1024));
        }
        i.block = static_cast<BlockId>(words[i.verb == Verb::Repeat ? 2 : 1].one_of(names_of(plan_.blocks), "block"));
        if (i.verb == Verb::Repeat) check_offsets(ref, i);
        break;
      case Verb::Yield:
      case Verb::RunHook:
      case Verb::Exit:
        need(1, 1, "[\"" + std::string(kVerbs[static_cast<std::size_t>(i.verb)]) + "\"]");
        break;
    }
    return i;
  }

  void check_offsets(const JsonRef& ref, const Instruction& repeat) const {
    for (const Instruction& i : plan_.blocks[repeat.block].body) {
      const bool has_op = i.verb == Verb::Launch || i.verb == Verb::HostWait;
      if (has_op && i.op.layer_offset >= repeat.stride)
        ref.fail("block \"" + plan_.blocks[repeat.block].name + "\" reaches layer offset " +
                 std::to_string(i.op.layer_offset) + ", but an iteration covers " + std::to_string(repeat.stride) +
                 " layers: number offsets from the newest layer down");
    }
  }

  OpRef read_op_ref(const JsonRef& name, const JsonRef* data) {
    OpRef op;
    op.op = static_cast<OpId>(name.one_of(names_of(plan_.ops), "op"));
    if (data != nullptr) {
      ObjectReader reader(*data);
      if (const auto u = reader.find("u")) op.ubatch = static_cast<std::int16_t>(u->integer(0, kMaxUbatches - 1));
      if (const auto l = reader.find("l")) op.layer_offset = static_cast<std::int32_t>(l->integer(-1024, 1024));
      reader.done();
    }
    return op;
  }

  void read_loads() {
    for (const JsonRef& item : reader_.require("loads").items()) {
      ObjectReader reader(item);
      Load load;
      for (const JsonRef& part : reader.require("ubatches").items()) load.ubatches.push_back(read_ubatch(part));
      reader.done();
      plan_.loads.push_back(std::move(load));
    }
    if (plan_.loads.empty()) reader_.require("loads").fail("must list at least one load");
  }

  static UbatchLoad read_ubatch(const JsonRef& ref) {
    ObjectReader reader(ref);
    UbatchLoad u;
    const JsonRef tokens = reader.require("tokens");
    const auto range = tokens.integers(0, kMaxTokens);
    if (range.size() != 2 || range[0] > range[1]) tokens.fail_type("a half-open range [first, end]");
    u.token_begin = range[0];
    u.token_end = range[1];
    const JsonRef padded = reader.require("padded");
    u.padded = padded.integer(0, kMaxTokens);
    if (u.padded < u.tokens())
      padded.fail("must be at least the " + std::to_string(u.tokens()) + " real tokens, is " +
                  std::to_string(u.padded));
    const auto narrow = [](const std::vector<std::int64_t>& values) {
      return std::vector<std::int32_t>(values.begin(), values.end());
    };
    const JsonRef qsl = reader.require("query_start_loc");
    u.query_start_loc = narrow(qsl.integers(0, INT32_MAX));
    const JsonRef seqs = reader.require("seq_lens");
    u.seq_lens = narrow(seqs.integers(0, INT32_MAX));
    if (!std::is_sorted(u.query_start_loc.begin(), u.query_start_loc.end())) qsl.fail("must not decrease");
    const bool both_empty = u.query_start_loc.empty() && u.seq_lens.empty();
    if (!both_empty && u.query_start_loc.size() != u.seq_lens.size() + 1)
      qsl.fail("must have one entry more than seq_lens");
    reader.done();
    return u;
  }

  void read_classes() {
    const JsonRef classes = reader_.require("classes");
    std::vector<char> covered(static_cast<std::size_t>(plan_.world.ranks), 0);
    for (const JsonRef& item : classes.items()) {
      ObjectReader reader(item);
      RankClass c;
      for (const JsonRef& range : reader.require("ranks").items()) {
        const auto ends = range.integers(0, plan_.world.ranks);
        if (ends.size() != 2 || ends[0] >= ends[1])
          range.fail_type("a half-open range [first, end] of ranks below " + std::to_string(plan_.world.ranks));
        for (std::int64_t r = ends[0]; r < ends[1]; ++r)
          if (covered[static_cast<std::size_t>(r)]++ != 0)
            range.fail("rank " + std::to_string(r) + " is in two classes");
        c.ranks.emplace_back(static_cast<int>(ends[0]), static_cast<int>(ends[1]));
      }
      const JsonRef threads = reader.require("threads");
      for (const std::int64_t t : threads.integers(0, static_cast<std::int64_t>(plan_.threads.size()) - 1))
        c.threads.push_back(static_cast<int>(t));
      if (c.threads.empty()) threads.fail("must name at least one thread");
      c.load = static_cast<int>(reader.require("load").integer(0, static_cast<std::int64_t>(plan_.loads.size()) - 1));
      reader.done();
      plan_.classes.push_back(std::move(c));
    }
    const auto missing = std::find(covered.begin(), covered.end(), 0);
    if (missing != covered.end()) classes.fail("rank " + std::to_string(missing - covered.begin()) + " is in no class");
    check_ubatches(classes);
  }

  /// Every ubatch a class's programs name must have a load.
  void check_ubatches(const JsonRef& classes) const {
    for (const RankClass& c : plan_.classes) {
      const auto have = static_cast<int>(plan_.loads[static_cast<std::size_t>(c.load)].ubatches.size());
      int need = 0;
      const auto see = [&](const Program& body) {
        for (const Instruction& i : body) {
          need = std::max<int>(need, i.op.ubatch + 1);
          for (const OpRef& ref : i.hook) need = std::max<int>(need, ref.ubatch + 1);
        }
      };
      for (const int t : c.threads) {
        const Thread& thread = plan_.threads[static_cast<std::size_t>(t)];
        need = std::max(need, thread.ubatch + 1);
        see(thread.body);
        for (const Instruction& i : thread.body)
          if (i.verb == Verb::Repeat || i.verb == Verb::Block) see(plan_.blocks[i.block].body);
      }
      if (need > have)
        classes.fail("the programs of a class use " + std::to_string(need) + " ubatches, its load has " +
                     std::to_string(have));
    }
  }

  void read_routing(const JsonRef& ref) {
    ObjectReader reader(ref);
    Routing& r = plan_.routing;
    r.kind = static_cast<RoutingKind>(reader.require("kind").one_of(kRoutings, "routing kind"));
    r.seed = static_cast<std::uint64_t>(reader.require("seed").count());
    r.per_layer = reader.require("per_layer").boolean();
    r.redundant = static_cast<int>(reader.require("redundant").integer(0, 1 << 20));
    if (r.kind == RoutingKind::Zipf)
      r.alpha = static_cast<double>(reader.require("alpha_billionths").count()) / kShareUnit;
    if (r.kind == RoutingKind::Table) {
      for (const JsonRef& row : reader.require("table_billionths").items()) {
        std::vector<double> shares;
        for (const std::int64_t share : row.integers(0, INT64_C(1) << 50))
          shares.push_back(static_cast<double>(share) / kShareUnit);
        r.table.push_back(std::move(shares));
      }
    }
    reader.done();
  }

  ObjectReader reader_;
  Plan plan_;
};

}  // namespace

Plan plan_from_json(const JsonRef& ref) {
  return PlanReader(ref).read();
}

Plan load_plan(const std::string& path) {
  return plan_from_json(JsonRef(load_json(path)));
}

bool looks_like_plan(const Json& value) {
  return value.find("format") != nullptr && value.find("threads") != nullptr;
}

}  // namespace dbo
