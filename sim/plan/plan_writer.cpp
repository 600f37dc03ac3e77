#include <algorithm>
#include <cmath>

#include "sim/base/hash.h"
#include "sim/plan/plan_json.h"
#include "sim/plan/plan_words.h"
#include "sim/plan/shape_json.h"

namespace dbo {
namespace {

using namespace plan_words;

Json op_ref_json(const Plan& plan, const OpRef& ref) {
  Json out;
  out.push(plan.ops[ref.op].name);
  if (ref.ubatch >= 0 || ref.layer_offset != 0) {
    Json data = Json::object();
    if (ref.ubatch >= 0) data.set("u", static_cast<int>(ref.ubatch));
    if (ref.layer_offset != 0) data.set("l", static_cast<int>(ref.layer_offset));
    out.push(std::move(data));
  }
  return out;
}

Json instruction_json(const Plan& plan, const Instruction& i) {
  Json out;
  out.push(kVerbs[static_cast<std::size_t>(i.verb)]);
  const auto append = [&](Json&& items) {
    for (Json& item : items.items()) out.push(std::move(item));
  };
  switch (i.verb) {
    case Verb::Launch:
      append(op_ref_json(plan, i.op));
      break;
    case Verb::HostWait: {
      Json ref = op_ref_json(plan, i.op);
      out.push(ref.items()[0]);
      out.push(i.notify ? "notify" : "end");
      if (ref.items().size() > 1) out.push(ref.items()[1]);
      break;
    }
    case Verb::Record:
    case Verb::Wait:
      out.push(plan.events[i.event]);
      out.push(plan.lanes[i.lane]);
      break;
    case Verb::Hook: {
      Json ops = Json::array();
      for (const OpRef& ref : i.hook) {
        Json item = op_ref_json(plan, ref);
        ops.push(item.items().size() == 1 ? item.items()[0] : item);
      }
      out.push(std::move(ops));
      break;
    }
    case Verb::Repeat:
      out.push(i.count);
      out.push(plan.blocks[i.block].name);
      if (i.stride != 1) out.push(i.stride);
      break;
    case Verb::Block:
      out.push(plan.blocks[i.block].name);
      break;
    case Verb::Yield:
    case Verb::RunHook:
    case Verb::Exit:
      break;
  }
  return out;
}

Json program_json(const Plan& plan, const Program& program) {
  Json out = Json::array();
  for (const Instruction& i : program) out.push(instruction_json(plan, i));
  return out;
}

Json buffers_json(const Plan& plan) {
  Json out = Json::object();
  for (const Buffer& b : plan.buffers)
    out.set(b.name, Json(Json::Object{{"slots", b.slots}, {"by", kSlotBys[static_cast<std::size_t>(b.by)]}}));
  return out;
}

Json ops_json(const Plan& plan) {
  Json out = Json::object();
  for (const OpDef& op : plan.ops) {
    Json def = Json::object();
    if (op.name != op_name(op.kind)) def.set("kind", op_name(op.kind));
    def.set("lane", plan.lanes[op.lane]);
    def.set("sms", kPools[static_cast<std::size_t>(op.sms)]);
    const auto names = [&](const std::vector<BufferId>& ids) {
      Json list = Json::array();
      for (const BufferId id : ids) list.push(plan.buffers[id].name);
      return list;
    };
    def.set("reads", names(op.reads));
    def.set("writes", names(op.writes));
    if (op.pairs) def.set("pairs", plan.ops[*op.pairs].name);
    out.set(op.name, std::move(def));
  }
  return out;
}

template <class Integer>
Json integers_json(const std::vector<Integer>& values) {
  Json::Array out;
  out.reserve(values.size());
  for (const Integer value : values) out.emplace_back(static_cast<std::int64_t>(value));
  return Json(std::move(out));
}

Json loads_json(const Plan& plan) {
  Json out = Json::array();
  for (const Load& load : plan.loads) {
    Json ubatches = Json::array();
    for (const UbatchLoad& u : load.ubatches) {
      Json item = Json::object();
      item.set("tokens", Json(Json::Array{u.token_begin, u.token_end}));
      item.set("padded", u.padded);
      item.set("query_start_loc", integers_json(u.query_start_loc));
      item.set("seq_lens", integers_json(u.seq_lens));
      ubatches.push(std::move(item));
    }
    out.push(Json(Json::Object{{"ubatches", std::move(ubatches)}}));
  }
  return out;
}

Json classes_json(const Plan& plan) {
  Json out = Json::array();
  for (const RankClass& c : plan.classes) {
    Json ranges = Json::array();
    for (const auto& [begin, end] : c.ranks) ranges.push(Json(Json::Array{begin, end}));
    out.push(Json(Json::Object{{"ranks", std::move(ranges)}, {"threads", integers_json(c.threads)}, {"load", c.load}}));
  }
  return out;
}

Json routing_json(const Routing& r) {
  Json out = Json::object();
  out.set("kind", kRoutings[static_cast<std::size_t>(r.kind)]);
  out.set("seed", r.seed);
  out.set("per_layer", r.per_layer);
  out.set("redundant", r.redundant);
  if (r.kind == RoutingKind::Zipf)
    out.set("alpha_billionths", static_cast<std::int64_t>(std::llround(r.alpha * kShareUnit)));
  if (r.kind == RoutingKind::Table) {
    Json table = Json::array();
    for (const std::vector<double>& row : r.table) {
      Json shares = Json::array();
      for (const double share : row) shares.push(static_cast<std::int64_t>(std::llround(share * kShareUnit)));
      table.push(std::move(shares));
    }
    out.set("table_billionths", std::move(table));
  }
  return out;
}

Json body_json(const Plan& plan) {
  Json out = Json::object();
  out.set("world", Json(Json::Object{{"ranks", plan.world.ranks}, {"ranks_per_node", plan.world.ranks_per_node}}));
  out.set("execution", kExecutions[static_cast<std::size_t>(plan.execution)]);
  out.set("transport", transport_info(plan.transport).name);
  out.set("tensor_parallel", plan.tensor_parallel);
  out.set("sm", Json(Json::Object{{"control", kSmControls[static_cast<std::size_t>(plan.sm.control)]},
                                  {"comm", plan.sm.comm},
                                  {"compute", plan.sm.compute},
                                  {"idle", plan.sm.idle}}));
  out.set("shape", shape_to_json(plan.shape));
  Json lanes = Json::array();
  for (const std::string& lane : plan.lanes) lanes.push(lane);
  out.set("lanes", std::move(lanes));
  out.set("buffers", buffers_json(plan));
  out.set("ops", ops_json(plan));
  Json events = Json::array();
  for (const std::string& event : plan.events) events.push(event);
  out.set("events", std::move(events));
  Json blocks = Json::object();
  for (const Block& block : plan.blocks) blocks.set(block.name, program_json(plan, block.body));
  out.set("blocks", std::move(blocks));
  Json threads = Json::array();
  for (const Thread& thread : plan.threads)
    threads.push(Json(Json::Object{{"ubatch", thread.ubatch}, {"body", program_json(plan, thread.body)}}));
  out.set("threads", std::move(threads));
  out.set("classes", classes_json(plan));
  out.set("loads", loads_json(plan));
  out.set("routing", routing_json(plan.routing));
  return out;
}

std::string body_hash(const Json& body) {
  return hash_text(content_hash(compact_json(body)));
}

}  // namespace

Json plan_to_json(const Plan& plan) {
  const Json body = body_json(plan);
  Json out = Json::object();
  out.set("format", 1);
  out.set("hash", body_hash(body));
  for (const Json::Member& member : body.members()) out.members().push_back(member);
  return out;
}

std::string plan_text(const Plan& plan) {
  return pretty_json(plan_to_json(plan));
}

std::string plan_hash(const Plan& plan) {
  return body_hash(body_json(plan));
}

}  // namespace dbo
