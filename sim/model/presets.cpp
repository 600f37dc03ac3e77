#include "sim/model/presets.h"

#include <algorithm>
#include <utility>

#include "sim/base/error.h"

namespace dbo {

extern const DataFile kModelData[];
extern const unsigned kModelData_count;
extern const DataFile kGpuData[];
extern const unsigned kGpuData_count;
extern const DataFile kFabricData[];
extern const unsigned kFabricData_count;

namespace {

std::vector<DataFile> sorted(const DataFile* files, unsigned count) {
  std::vector<DataFile> out(files, files + count);
  std::sort(out.begin(), out.end(), [](const DataFile& a, const DataFile& b) { return a.name < b.name; });
  return out;
}

std::vector<std::string_view> names_of(const std::vector<DataFile>& files) {
  std::vector<std::string_view> out;
  out.reserve(files.size());
  for (const DataFile& file : files) out.push_back(file.name);
  return out;
}

/// Same shape, another name.
constexpr std::pair<std::string_view, std::string_view> kAliases[] = {{"deepseek-v3.1", "deepseek-v3"},
                                                                      {"deepseek-v2.5", "deepseek-v2"}};

/// Words in a name that make it another model than the preset its name begins with.
constexpr std::string_view kOthers[] = {"distill", "air", "lite", "flash", "mini"};

bool begins_with_word(std::string_view name, std::string_view preset) {
  if (!name.starts_with(preset)) return false;
  std::string_view rest = name.substr(preset.size());
  if (rest.empty()) return true;
  if (rest.front() != '-') return false;
  while (!rest.empty()) {
    rest.remove_prefix(1);
    const std::string_view word = rest.substr(0, rest.find('-'));
    if (std::find(std::begin(kOthers), std::end(kOthers), word) != std::end(kOthers)) return false;
    rest.remove_prefix(word.size());
  }
  return true;
}

/// The embedded file as a document whose messages call it `what NAME`.
JsonRef open_preset(const std::vector<DataFile>& files, std::string_view name, std::string_view what) {
  for (const DataFile& file : files)
    if (file.name == name) return JsonRef(json_document(file.text, std::string(what) + " preset " + std::string(name)));
  throw InputError("unknown " + std::string(what) + " \"" + std::string(name) + "\" " +
                   known_names(name, names_of(files)));
}

}  // namespace

const std::vector<DataFile>& model_files() {
  static const std::vector<DataFile> files = sorted(kModelData, kModelData_count);
  return files;
}

const std::vector<DataFile>& gpu_files() {
  static const std::vector<DataFile> files = sorted(kGpuData, kGpuData_count);
  return files;
}

const std::vector<DataFile>& fabric_files() {
  static const std::vector<DataFile> files = sorted(kFabricData, kFabricData_count);
  return files;
}

std::vector<std::string_view> model_names() {
  return names_of(model_files());
}
std::vector<std::string_view> gpu_names() {
  return names_of(gpu_files());
}
std::vector<std::string_view> fabric_names() {
  return names_of(fabric_files());
}

std::optional<std::string> preset_of_model(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  const std::string name = lower_case(slash == std::string_view::npos ? path : path.substr(slash + 1));
  std::string best;
  for (const std::string_view preset : model_names())
    if (begins_with_word(name, preset) && preset.size() > best.size()) best = preset;
  for (const auto& [alias, preset] : kAliases)
    if (begins_with_word(name, alias) && alias.size() > best.size()) best = preset;
  if (best.empty()) return std::nullopt;
  return best;
}

ModelShape model_preset(std::string_view name) {
  ModelShape shape = model_from_object(open_preset(model_files(), name, "model"));
  shape.name = name;
  return shape;
}

GpuSpec gpu_preset(std::string_view name) {
  GpuSpec gpu = gpu_from_object(open_preset(gpu_files(), name, "gpu"));
  gpu.name = name;
  return gpu;
}

FabricSpec fabric_preset(std::string_view name) {
  FabricSpec fabric = fabric_from_object(open_preset(fabric_files(), name, "fabric"));
  fabric.name = name;
  return fabric;
}

}  // namespace dbo
