// What a calibration measures: a list of settings, each one batch on one rank with some of its ops, alone and beside
// each other. Pure: the same model and scope give the same list.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/base/json.h"
#include "sim/base/json_reader.h"
#include "sim/config/config.h"
#include "sim/plan/plan.h"

namespace dbo::validate {

struct CalibrationSetting {
  bool prefill = false;
  int ranks = 2;             ///< of the plan; more than there are GPUs: one rank is played
  std::int64_t tokens = 0;   ///< of the rank
  std::int64_t context = 0;  ///< decode: of every request; prefill: new tokens of every prompt
  std::int64_t cached = 0;   ///< prefill: tokens of every prompt that are already there
  Transport transport = Transport::LsaLl;
  bool low_latency = true;  ///< sends and receives; otherwise whole exchanges
  int comm_sms = 0;         ///< SMs of comm kernels (0: the transport has none)
  bool partition = false;   ///< whether compute kernels leave those SMs to them
  std::vector<OpKind> ops;  ///< measured alone
  std::vector<OpKind>
      beside;  ///< compute ops also measured while dispatches and combines run all along, and the reverse

  friend bool operator==(const CalibrationSetting&, const CalibrationSetting&) = default;
};

struct CalibrationPoints {
  ModelShape shape;  ///< as the kernels run it: see replay_shape
  int gpu_sms = 132;
  std::vector<CalibrationSetting> settings;

  friend bool operator==(const CalibrationPoints&, const CalibrationPoints&) = default;
};

/// One way communication is used: what its points are measured for.
struct CalibrationUse {
  bool prefill = false;
  int ranks = 0;
  Transport transport = Transport::LsaLl;
  bool low_latency = true;
  int comm_sms = 0;  ///< 0: the transport has none

  friend bool operator==(const CalibrationUse&, const CalibrationUse&) = default;
};

/// What a calibration has to serve.
struct CalibrationScope {
  std::vector<int> ranks;  ///< sizes of the expert-parallel group
  std::vector<Transport> transports;
  std::vector<int> comm_sms;  ///< splits of the SMs that configs use
  int gpus = 2;               ///< here
  int gpu_sms = 132;
  bool decode = true, prefill = true;
  bool quick = false;  ///< a coarse grid, for a minute
  /// Of all combinations of the above only these; empty: all of them.
  std::vector<CalibrationUse> uses;
};

/// What these configs need measured. Throws InputError when they are of different models or there are none.
CalibrationScope scope_of(const std::vector<Config>& configs, int gpus);

/// The model with the precisions that the kernels run: routed experts and dispatch as they are, bf16 or fp8; other
/// weights, cache and combine bf16.
ModelShape replay_shape(ModelShape shape);

/// Coarse to fine, most needed first, so that a calibration that is cut short still serves.
CalibrationPoints calibration_points(const ModelShape& shape, const CalibrationScope& scope);

/// The plan a setting's ops are taken from: a few layers, balanced routing, every rank with the same batch. Where SMs are
/// set aside, a step of two ubatches with the setting's batch each; else an un-split one.
Plan setting_plan(const CalibrationPoints& points, const CalibrationSetting& setting);

/// "decode 128 x 4096, EP16, lsa-ll": a line for people.
std::string setting_name(const CalibrationSetting& setting);

Json points_to_json(const CalibrationPoints& points);
/// Throws InputError with the place for what is malformed.
CalibrationPoints points_from_json(const JsonRef& ref);

}  // namespace dbo::validate
