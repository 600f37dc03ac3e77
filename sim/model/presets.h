// Models, GPUs and fabrics: presets (JSON data files in sim/model/data, embedded at build time), objects with the keys
// of those files, and Hugging Face config.json files.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/data_file.h"
#include "sim/base/json_reader.h"
#include "sim/base/model_shape.h"
#include "sim/model/hardware.h"

namespace dbo {

/// The embedded files, sorted by name: what `dbo list` shows.
const std::vector<DataFile>& model_files();
const std::vector<DataFile>& gpu_files();
const std::vector<DataFile>& fabric_files();

std::vector<std::string_view> model_names();
std::vector<std::string_view> gpu_names();
std::vector<std::string_view> fabric_names();

/// The preset of a model by its name on Hugging Face ("deepseek-ai/DeepSeek-V3-0324"); nothing when none fits.
std::optional<std::string> preset_of_model(std::string_view name);

/// Each throws InputError with the known names and the nearest one when there is no such preset.
ModelShape model_preset(std::string_view name);
GpuSpec gpu_preset(std::string_view name);
FabricSpec fabric_preset(std::string_view name);

/// A model as a config gives it: a preset's name, or an object:
///   the keys of the preset files; or {"layers", "dense_layers"} alone, which is enough for fixed costs and stands for
///   a model with a shared expert and one routed expert a rank;
///   {"preset": name} or {"hf_config": path relative to the config's folder}, with any key of the preset files over it.
/// "precision" {"weights", "expert_weights", "kv_cache", "dispatch", "combine"}: "weights" alone means routed experts
/// too. Throws InputError at the place, also for shapes that cannot be (heads that do not divide, and so on).
ModelShape model_from_object(const JsonRef& ref);

/// A GPU or fabric as a config gives it: a preset's name, or an object with the keys of the preset files, or
/// {"preset": name} with keys over it.
GpuSpec gpu_from_object(const JsonRef& ref);
FabricSpec fabric_from_object(const JsonRef& ref);

/// Reads a Hugging Face config.json. Unknown keys are passed over, as the file says much that costs no time; a family,
/// quantisation or layer pattern that is not understood is an InputError.
ModelShape model_from_hf(const std::string& path);
/// The families `model_from_hf` understands, by `model_type`.
std::vector<std::string_view> hf_families();

std::string_view precision_name(Precision precision);  ///< "fp8"
std::vector<std::string_view> precision_names();

}  // namespace dbo
