// Measures a list of points on the GPUs of this machine and writes a profile.
#pragma once

#include <string>

#include "validate/calibration_result.h"

namespace dbo::validate {

struct CalibrateOptions {
  int gpus = 2;
  std::string out;         ///< the profile; what is done so far lies beside it, in OUT.partial
  bool fresh = false;      ///< forget an earlier, unfinished calibration
  bool windows = false;    ///< exchange through NCCL windows instead of peer-mapped memory
  bool quick = false;      ///< fewer repeats
  double limit_s = 240;    ///< no setting is begun after that; what is missing stays for the next run
  std::string gpu_preset;  ///< what the profile calls the GPU; empty: found by name
};

/// One line a setting on stderr (a bar on a terminal). Returns the number of settings left undone. Throws CudaError and
/// NcclError; what was measured before is kept.
std::size_t calibrate(const CalibrationPoints& points, const CalibrateOptions& options);

/// The GPU preset that a device's name stands for ("NVIDIA H200": "h200-sxm"), or empty.
std::string preset_of_device(const std::string& name);

}  // namespace dbo::validate
