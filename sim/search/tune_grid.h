// What a sweep tries: the lists a user gives or leaves to us, and every setting they make.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/base/json.h"
#include "sim/base/json_reader.h"
#include "sim/config/config.h"

namespace dbo {

/// Lists of a sweep; an empty one is filled by `complete`.
struct TuneLists {
  std::vector<std::int64_t> tokens;  ///< a data-parallel rank
  std::vector<std::int64_t> contexts;
  std::vector<int> expert_parallel;  ///< GPUs; whole nodes
  std::vector<Transport> transports;
  std::vector<std::string> schedules;
  std::vector<int> ubatches;
  std::vector<SmControl> sm_controls;
  std::vector<int> comm_sms;
};

/// One setting with its batch. Un-split steps have schedule "sequential" and one ubatch.
struct TunePoint {
  Phase phase = Phase::Decode;  ///< of the batch; counts only where the config gives its batch by rule
  std::int64_t tokens = 0;      ///< a data-parallel rank
  std::int64_t context = 0;
  int gpus = 1;
  Transport transport = Transport::Ll;
  int ubatches = 1;
  SmControl sm_control = SmControl::Limit;
  int comm_sms = 0;  ///< 0 where the transport sets none aside, and un-split
  std::string schedule;

  bool split() const { return ubatches > 1; }
  friend bool operator==(const TunePoint&, const TunePoint&) = default;
};

/// Points that differ only in their schedule: they share batch and costs.
struct TuneGroup {
  std::size_t first = 0, end = 0;  ///< into TuneGrid::points
};

/// Settings that were not tried, and why.
struct LeftOut {
  std::string what, why;
};

struct TuneGrid {
  TuneLists lists;  ///< complete
  std::vector<TunePoint> points;
  std::vector<TuneGroup> groups;
  std::vector<LeftOut> left_out;
};

/// Fills what the user left open from the config: batches around the phase's usual ones and the config's own; the
/// config's context and GPUs; the transports of the config's kind (DeepEP's, or ours); all built-in schedules, two
/// ubatches; SM control and counts where a transport sets SMs aside. The un-split step with each transport is always a
/// point. Throws InputError for lists that the config cannot follow: with fixed costs or a batch given request by
/// request there is one batch only, and GPUs must be whole nodes.
TuneGrid make_tune_grid(const Config& config, TuneLists lists);

/// The batches a phase is looked at with when the user names none, ascending, the config's own among them.
std::vector<std::int64_t> usual_tokens(const Config& config, Phase phase);

Json tune_lists_to_json(const TuneLists& lists);
TuneLists tune_lists_from_json(const JsonRef& ref);

}  // namespace dbo
