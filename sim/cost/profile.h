// Measured costs of one machine, and a table made of them.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/base/json.h"
#include "sim/base/json_reader.h"
#include "sim/cost/analytical.h"
#include "sim/cost/clocked_costs.h"

namespace dbo {

class RoutedLoads;

/// The machine a profile was measured on. What was not found out stays empty or 0.
struct ProfileMachine {
  std::string gpu;     ///< as the driver names it
  std::string preset;  ///< the GPU preset it is; empty: none
  int gpus = 1;        ///< that took part
  int nodes = 1;       ///< they were spread over
  std::string driver, cuda, nccl, cublas;
  int sm_clock_mhz = 0, memory_clock_mhz = 0;

  friend bool operator==(const ProfileMachine&, const ProfileMachine&) = default;
};

/// One measurement.
struct ProfilePoint {
  /// An op kind's name ("A1", "D.send", "C"), "D.wire" or "C.wire", or "D.notify".
  std::string op;
  bool prefill = false;                ///< A0, A1, EMB, HEAD: prompts; otherwise decode
  std::optional<Transport> transport;  ///< communication: always; MLP: whose layout its rows had
  int ranks = 0;                       ///< communication: that took part
  int experts = 0;                     ///< MLP: that shared the rows
  /// Computed on; MLP: rows of all its experts; communication: sent by each rank.
  std::int64_t tokens = 0;
  std::int64_t context = 0;               ///< A0, A1: cached tokens a query sees, or length of each prompt; else 0
  int sms = 0;                            ///< it could use
  Precision precision = Precision::Bf16;  ///< of weights, or of the payload
  std::string beside;                     ///< what ran beside it all along; empty: it ran alone
  int beside_sms = 0;                     ///< SMs of that; 0: copy engines
  /// Computation, alone: percent of the time that the GPU computed, pauses after each layer making up the rest. At a
  /// power limit the clock is the higher the lower this is.
  int duty = 100;
  double median_us = 0;
  double spread_us = 0;  ///< between the quartiles
  int repeats = 0;
  int sm_mhz = 0;  ///< mean SM clock meanwhile, pauses between replays included; 0: not known

  friend bool operator==(const ProfilePoint&, const ProfilePoint&) = default;
};

/// A formula fitted to points, for people and for what was not measured.
struct ProfileFit {
  std::string what;     ///< "D.send of lsa-ll"
  std::string formula;  ///< "alpha_us + tokens * us_per_token"
  std::vector<std::pair<std::string, double>> parameters;
  double residual = 0;  ///< root of the mean squared relative error
  int points = 0;

  friend bool operator==(const ProfileFit&, const ProfileFit&) = default;
};

struct Profile {
  std::string file;  ///< what messages call it
  ProfileMachine machine;
  std::string date;  ///< 2026-11-30
  ModelShape shape;  ///< the layer that was measured
  int tensor_parallel = 1;
  std::vector<ProfilePoint> points;
  std::optional<HostCosts> host;
  std::vector<ProfileFit> fits;
  std::vector<std::string> warnings;  ///< what of the file is not used, with its place
};

/// Throws InputError with the place: unknown keys, ops or transports, negative times, a point given twice.
Profile profile_from_json(const JsonRef& ref);
Profile load_profile(const std::string& path);
/// The measured profile that ships for a GPU preset and a model preset, if there is one.
std::optional<Profile> shipped_profile(std::string_view gpu, std::string_view model);
std::vector<std::string_view> shipped_profile_names();  ///< "GPU.MODEL", in alphabetical order
Json profile_to_json(const Profile& profile);
/// One element of a profile's "points", for whoever keeps some before the profile is whole.
ProfilePoint profile_point_from_json(const JsonRef& ref);
Json profile_point_to_json(const ProfilePoint& point);

/// What running beside something costs an op, its two causes apart.
struct PairCost {
  std::string op, beside;
  std::int64_t tokens = 0, context = 0;
  int sms = 0, beside_sms = 0;
  double partition = 1;   ///< alone on `sms` over alone on the most SMs measured
  double contention = 1;  ///< beside over alone, both on `sms`

  friend bool operator==(const PairCost&, const PairCost&) = default;
};

/// Every point measured beside something that was also measured alone.
std::vector<PairCost> pair_costs(const Profile& profile);

/// Kernels that one op of a kind is made of; nothing when they were not counted.
std::optional<double> profile_kernels(const Profile& profile, std::string_view op);

/// The table of a plan from measured points. Between points an op's time is linear in tokens, context, SMs and ranks
/// (so as monotone as the points are, and exact at them); beyond them it goes on as the analytical cost does, which
/// also carries what the coordinates leave out (requests of unequal length, skewed rows). Ops that were not measured
/// are analytical; assumptions say which. Points are of graphs: of an eager plan, an op's kernels lie further apart, by
/// the measured gaps. Throws InputError when the profile is of another model, GPU or degree of tensor parallelism.
/// `loads` as with analytical costs. Computation takes what it took at the clock that `power` comes to, between and
/// beyond the two clocks it was measured at.
CostTable profile_costs(const Plan& plan, const Profile& profile, const MachineSpec& machine,
                        RoutedLoads* loads = nullptr, const PowerState& power = {});
/// The same, for whoever tries several powers: computation has no price before the first is set.
ClockedCosts clocked_costs(const Plan& plan, const Profile& profile, const MachineSpec& machine,
                           RoutedLoads* loads = nullptr);

/// The duty below 100, in percent, that most of A0's points with a clock (then, most of all) were measured at: with
/// those without pauses, they say what the clock changes. 100: there are none.
int relaxed_duty(const Profile& profile);
/// Takes out the points with pauses that say nothing of the clock (of another duty, without any clock, slower than
/// without pauses), each kind with a warning.
void keep_usable_clocks(Profile& profile);

}  // namespace dbo
