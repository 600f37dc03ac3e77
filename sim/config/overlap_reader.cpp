// How the step is split and scheduled: "overlap" and "execution".
#include <algorithm>
#include <string>

#include "sim/base/error.h"
#include "sim/base/schedule_names.h"
#include "sim/base/units.h"
#include "sim/config/readers.h"

namespace dbo {
namespace {

/// The member of an object, where an error about it belongs; the object itself when it is absent.
JsonRef place(const JsonRef& ref, std::string_view key) {
  const Json* value = ref.value().find(key);
  return value == nullptr ? ref : JsonRef(ref, *value);
}

NotationConfig read_notation(const JsonRef& ref) {
  ObjectReader reader(ref, "the name of a schedule or an object with its notation");
  NotationConfig notation;
  notation.compute = reader.require("compute").string();
  if (const auto comm = reader.find("comm")) notation.comm = comm->string();
  if (const auto order = reader.find("order")) notation.order = order->string();
  reader.done();
  return notation;
}

bool has_send(const NotationConfig& notation) {
  for (const std::string* text : {&notation.compute, &notation.comm, &notation.order})
    if (text->find(".send") != std::string::npos) return true;
  return false;
}

/// What the schedule says about class, transport and coordination.
struct ScheduleTraits {
  TransportClass schedule_class;
  Transport transport;
  Coordination coordination;
  int most_ubatches;
};

ScheduleTraits read_schedule(const std::optional<JsonRef>& ref, OverlapConfig& overlap) {
  if (ref && !ref->value().is_string()) {
    overlap.schedule.clear();
    overlap.notation = read_notation(*ref);
    const bool send = has_send(*overlap.notation);
    return {send ? TransportClass::LowLatency : TransportClass::HighThroughput, send ? Transport::Ll : Transport::Ht,
            Coordination::V1, 64};
  }
  std::vector<std::string_view> names;
  for (const ScheduleName& schedule : schedule_names()) names.push_back(schedule.name);
  if (ref) overlap.schedule = names[ref->one_of(names, "schedule")];
  const ScheduleName& schedule = *find_schedule_name(overlap.schedule);
  return {schedule.schedule_class, schedule.default_transport,
          schedule.sglang ? Coordination::Sglang : Coordination::V1, schedule.most_ubatches};
}

std::string class_text(TransportClass schedule_class) {
  return schedule_class == TransportClass::LowLatency ? "has send and receive halves" : "has one comm op";
}

void read_transport(const std::optional<JsonRef>& ref, const ScheduleTraits& schedule, OverlapConfig& overlap) {
  overlap.transport = schedule.transport;
  if (ref) overlap.transport = *find_transport(transport_names()[ref->one_of(transport_names(), "transport")]);
  const TransportInfo& transport = transport_info(overlap.transport);
  if (schedule.schedule_class == TransportClass::Both) {
    overlap.low_latency = !serves(transport, TransportClass::HighThroughput);
    return;
  }
  overlap.low_latency = schedule.schedule_class == TransportClass::LowLatency;
  if (serves(transport, schedule.schedule_class)) return;
  std::string allowed;
  for (const TransportInfo& info : transports())
    if (serves(info, schedule.schedule_class)) allowed += (allowed.empty() ? "" : ", ") + std::string(info.name);
  const std::string name = overlap.notation ? "the notation" : "schedule \"" + overlap.schedule + "\"";
  ref->fail("\"" + std::string(transport.name) + "\" does not serve " + name + ", which " +
            class_text(schedule.schedule_class) + " (allowed: " + allowed + ")");
}

void check_thresholds(const JsonRef& ref, const OverlapConfig& overlap) {
  // SGLang reads no threshold; without a split nothing does.
  if (overlap.coordination == Coordination::Sglang || overlap.ubatches < 2) return;
  const auto check = [&](std::string_view key, std::int64_t threshold) {
    if (threshold >= overlap.ubatches) return;
    const Json* value = ref.value().find(key);
    if (value == nullptr)
      place(ref, "ubatches")
          .fail("must be at most /overlap/" + std::string(key) + " (" + std::to_string(threshold) +
                " by default), is " + std::to_string(overlap.ubatches));
    JsonRef(ref, *value)
        .fail("must be at least /overlap/ubatches (" + std::to_string(overlap.ubatches) +
              "), so that a rank past it can fill every ubatch, is " + std::to_string(threshold));
  };
  check("decode_token_threshold", overlap.decode_token_threshold);
  check("prefill_token_threshold", overlap.prefill_token_threshold);
}

void read_ubatches(ObjectReader& reader, const ScheduleTraits& schedule, OverlapConfig& overlap) {
  if (const auto value = reader.find("ubatches")) {
    overlap.ubatches = static_cast<int>(value->integer(1, 64));
    const std::string one = overlap.ubatches == 1 ? "" : ", is " + std::to_string(overlap.ubatches);
    if (overlap.ubatches > schedule.most_ubatches)
      value->fail("must be 1 or " + std::to_string(schedule.most_ubatches) + " for schedule \"" + overlap.schedule +
                  "\"" + one);
    if (overlap.coordination == Coordination::Sglang && overlap.ubatches > 2)
      value->fail("must be 1 or 2 with coordination \"sglang\", which splits a batch in two" + one);
  }
}

}  // namespace

bool OverlapConfig::is_sequential() const {
  return schedule == kSequentialSchedule;
}

OverlapConfig read_overlap(const std::optional<JsonRef>& ref) {
  OverlapConfig overlap;
  if (!ref) return overlap;
  ObjectReader reader(*ref, "an object that describes the overlap");
  const ScheduleTraits schedule = read_schedule(reader.find("schedule"), overlap);
  read_transport(reader.find("transport"), schedule, overlap);
  overlap.coordination = schedule.coordination;
  if (const auto value = reader.find("coordination"))
    overlap.coordination = static_cast<Coordination>(value->one_of(coordination_names(), "coordination"));
  read_ubatches(reader, schedule, overlap);
  if (const auto value = reader.find("decode_token_threshold")) overlap.decode_token_threshold = value->count(1);
  if (const auto value = reader.find("prefill_token_threshold")) overlap.prefill_token_threshold = value->count(1);
  if (const auto value = reader.find("comm_sms")) overlap.comm_sms = static_cast<int>(value->integer(0, 1 << 20));
  if (const auto value = reader.find("comm_sms_created"))
    overlap.comm_sms_created = static_cast<int>(value->integer(1, 1 << 20));
  if (const auto value = reader.find("sm_control"))
    overlap.sm_control = static_cast<SmControl>(value->one_of({"limit", "green-context", "none"}, "sm_control"));
  if (const auto value = reader.find("token_distribution_threshold"))
    overlap.token_distribution_threshold = value->number(0, 0.5);
  reader.done();
  check_thresholds(*ref, overlap);
  return overlap;
}

void check_sms(const JsonRef& overlap_ref, const OverlapConfig& overlap, const GpuSpec& gpu) {
  const TransportInfo& transport = transport_info(overlap.transport);
  if (!transport.limits_sms) return;
  const auto fail = [&](std::string_view key, const std::string& message) {
    const bool absent = overlap_ref.value().find(key) == nullptr;
    place(overlap_ref, key).fail((absent ? std::string(key) + " " : "") + message);
  };
  const std::string total = "the " + std::to_string(gpu.sms) + " SMs of " + gpu.name;
  const std::string asked = ", is " + std::to_string(overlap.comm_sms);
  if (overlap.comm_sms >= gpu.sms) fail("comm_sms", "must be below " + total + asked);
  if (transport.sms_as_asked && overlap.comm_sms == 0)
    fail("comm_sms", "must be at least 1 with transport \"" + std::string(transport.name) +
                         "\", whose kernel has as many blocks" + asked);
  const bool capped = transport.sms_capped_by_created && overlap.comm_sms > overlap.comm_sms_created;
  const int used = capped ? overlap.comm_sms_created : overlap.comm_sms;
  if (transport.sms_even && used % 2 != 0)
    fail(capped ? "comm_sms_created" : "comm_sms",
         "must be even with transport \"" + std::string(transport.name) + "\", is " + std::to_string(used));
  const std::int64_t pool = ceil_div(overlap.comm_sms, gpu.green_context_granularity) * gpu.green_context_granularity;
  if (overlap.sm_control == SmControl::GreenContext && gpu.sms - pool < gpu.green_context_minimum)
    fail("comm_sms", "must leave at least the " + std::to_string(gpu.green_context_minimum) +
                         " SMs that a green context needs of " + total + asked);
}

ExecutionConfig read_execution(const std::optional<JsonRef>& ref) {
  ExecutionConfig execution;
  if (!ref) return execution;
  ObjectReader reader(*ref, "an object that describes the execution");
  if (const auto value = reader.find("mode"))
    execution.mode = static_cast<Execution>(value->one_of({"eager", "graph"}, "execution mode"));
  if (const auto value = reader.find("graph_sizes")) {
    std::vector<std::int64_t> sizes = value->integers(1, kMaxTokens);
    if (sizes.empty())
      value->fail("must list at least one size; without the key every step has a graph of its own size");
    std::sort(sizes.begin(), sizes.end());
    const auto twice = std::adjacent_find(sizes.begin(), sizes.end());
    if (twice != sizes.end()) value->fail("lists " + std::to_string(*twice) + " twice");
    execution.graph_sizes = std::move(sizes);
  }
  if (const auto value = reader.find("host")) {
    if (value->value().is_string()) {
      value->one_of({"cpp", "python"}, "host");
    } else {
      ObjectReader times(*value, "\"cpp\", \"python\" or an object of times");
      for (const std::string_view key :
           {"launch_us", "record_us", "wait_us", "yield_us", "graph_launch_us", "node_gap_us", "lane_gap_us"})
        if (const auto time = times.find(key)) time->number(0, 1e9);
      times.done();
    }
    execution.host = value->value();
  }
  reader.done();
  return execution;
}

}  // namespace dbo
