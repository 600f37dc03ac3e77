#include "sim/batch/decision_json.h"

namespace dbo {
namespace {

Json range_json(Range range) {
  return Json(Json::Array{range.begin, range.end});
}

template <class Value>
Json array_json(const std::vector<Value>& values) {
  Json::Array out;
  out.reserve(values.size());
  for (const Value value : values) out.emplace_back(std::int64_t{value});
  return Json(std::move(out));
}

Json slice_json(const UbatchSlice& slice) {
  Json out = Json::object();
  out.set("requests", range_json(slice.requests));
  out.set("tokens", range_json(slice.tokens));
  out.set("padded_tokens", range_json(slice.padded_tokens));
  out.set("padded_requests", range_json(slice.padded_requests));
  out.set("query_start_loc", array_json(slice.query_start_loc));
  out.set("seq_lens", array_json(slice.seq_lens));
  out.set("empty", slice.empty());
  out.set("block_table_rows", range_json(slice.block_table_rows));
  Json& slots = out.set("slot_mapping", Json::object());
  slots.set("slots", range_json(slice.padded_tokens));
  slots.set("unused", slice.unused_slots());
  return out;
}

Json rank_json(const RankSplit& rank) {
  Json out = Json::object();
  Json& ubatches = out.set("ubatches", Json::array());
  for (const UbatchSlice& slice : rank.ubatches) ubatches.push(slice_json(slice));
  return out;
}

}  // namespace

Json decision_to_json(const Decision& decision) {
  Json out = Json::object();
  out.set("split", decision.split);
  out.set("reason", reason_name(decision.reason));
  out.set("reason_text", decision.reason_text);
  out.set("votes", array_json(decision.votes));
  Json& rows = out.set("vote_rows", Json::object());
  for (const VoteRow& row : decision.vote_rows) rows.set(row.name, array_json(row.values));
  out.set("padded_tokens", decision.padded_tokens ? Json(*decision.padded_tokens) : Json());
  Json& graph = out.set("graph", Json::object());
  graph.set("mode", graph_mode_name(decision.graph.mode));
  graph.set("size", decision.graph.size ? Json(*decision.graph.size) : Json());
  graph.set("why", decision.graph.why);
  graph.set("unsplit_sizes", array_json(decision.graph.unsplit_sizes));
  graph.set("ubatched_sizes", array_json(decision.graph.ubatched_sizes));
  out.set("comm_sms", decision.sms.comm);
  out.set("compute_sms", decision.sms.compute);
  out.set("idle_sms", decision.sms.idle);
  out.set("ubatches", decision.ubatches);
  Json& ranks = out.set("ranks", Json::array());
  for (const RankSplit& rank : decision.ranks) ranks.push(rank_json(rank));
  return out;
}

}  // namespace dbo
