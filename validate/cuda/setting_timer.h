// Measures one setting of a calibration on one rank: each of its ops alone, and computation beside communication.
#pragma once

#include <vector>

#include "runtime/cuda/moe_table.h"
#include "sim/cost/profile.h"
#include "validate/calibration.h"
#include "validate/calibration_result.h"
#include "validate/cuda/chain_timer.h"

namespace dbo::validate {

/// What every setting of a rank shares.
struct RankBench {
  runtime::HostGroup& group;
  const runtime::Placement& placement;
  const kernels::TimerProbe& timer;
  runtime::NcclComm* comm = nullptr;  ///< null: peers are mapped
  int gpu = 0;
  Ns node_gap{};  ///< from the end of an op to the begin of the next inside a graph
  bool quick = false;
};

struct SettingFigures {
  std::vector<ProfilePoint> points;
  std::vector<HostLaunch> host;
  double eager_gap_us = 0;  ///< as of MeasuredSetting
};
/// One setting's figures on this rank. Collective. Throws InputError for what the kernels cannot run.
SettingFigures measure_setting(const RankBench& bench, const CalibrationPoints& points,
                               const CalibrationSetting& setting, const RepeatRule& rule);

/// The same points as every rank measured them: the slowest rank's median and the largest spread. Collective.
std::vector<ProfilePoint> slowest_of(runtime::HostGroup& group, std::vector<ProfilePoint> points);

}  // namespace dbo::validate
