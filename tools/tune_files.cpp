#include "tools/tune_files.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "sim/base/error.h"
#include "sim/base/files.h"
#include "tools/version.h"

namespace dbo {
namespace {

constexpr const char* kSweepFile = "sweep.json";
constexpr std::string_view kPointsPrefix = "points", kPointsSuffix = ".jsonl";
constexpr TuneStatus kStatuses[] = {TuneStatus::Ok, TuneStatus::NoMemory, TuneStatus::NotSplit, TuneStatus::Unsound};

std::string line_of(std::size_t point, const TuneResult& r) {
  Json line = Json::object();
  line.set("point", static_cast<std::int64_t>(point));
  line.set("status", status_name(r.status));
  line.set("step_ns", r.step_ns);
  line.set("memory_bytes", r.memory_bytes);
  if (!r.why.empty()) line.set("why", r.why);
  return compact_json(line) + "\n";
}

void load_lines(const std::string& path, TuneResults& results) {
  const std::string text = read_file(path);
  std::size_t begin = 0, number = 0;
  while (begin < text.size()) {
    const std::size_t end = text.find('\n', begin);
    ++number;
    if (end == std::string::npos) return;  // cut off: the run was killed while it wrote
    const auto document = json_document(text.substr(begin, end - begin), path + ":" + std::to_string(number));
    begin = end + 1;
    ObjectReader reader(JsonRef(document), "a finished point");
    const std::int64_t point = reader.require("point").integer(0, static_cast<std::int64_t>(results.size()) - 1);
    TuneResult r;
    const JsonRef status = reader.require("status");
    std::vector<std::string_view> names;
    for (const TuneStatus s : kStatuses) names.push_back(status_name(s));
    r.status = kStatuses[status.one_of(names, "status")];
    r.step_ns = reader.require("step_ns").count();
    r.memory_bytes = reader.require("memory_bytes").count();
    if (const auto why = reader.find("why")) r.why = why->string();
    reader.done();
    results[static_cast<std::size_t>(point)] = std::move(r);
  }
}

/// Ends a file that a killed run left in the middle of a line, so that the next line is one of its own.
void drop_partial_line(const std::string& path) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  if (error || size == 0) return;
  const std::string text = read_file(path);
  const std::size_t last = text.rfind('\n');
  const std::size_t keep = last == std::string::npos ? 0 : last + 1;
  if (keep != text.size()) std::filesystem::resize_file(path, keep);
}

}  // namespace

TuneShard parse_shard(const std::string& text) {
  TuneShard shard;
  if (text.empty()) return shard;
  const std::size_t slash = text.find('/');
  const auto number = [&](std::string_view digits) -> std::optional<std::size_t> {
    if (digits.empty() || digits.size() > 6) return std::nullopt;
    std::size_t value = 0;
    for (const char c : digits) {
      if (c < '0' || c > '9') return std::nullopt;
      value = value * 10 + static_cast<std::size_t>(c - '0');
    }
    return value;
  };
  const auto index = slash == std::string::npos ? std::nullopt : number(std::string_view(text).substr(0, slash));
  const auto of = slash == std::string::npos ? std::nullopt : number(std::string_view(text).substr(slash + 1));
  if (!index || !of || *of == 0 || *index >= *of)
    throw InputError("--shard must be INDEX/COUNT with an index from 0, such as 0/4, is \"" + text + "\"");
  return {*index, *of};
}

std::string sweep_text(const Config& config, const TuneLists& lists) {
  Json out = Json::object();
  out.set("dbo", kVersion);
  out.set("config_file", config.file);
  out.set("config", config_to_json(config));
  out.set("lists", tune_lists_to_json(lists));
  return pretty_json(out);
}

Sweep read_sweep(const std::string& folder) {
  const auto document = load_json(folder + "/" + kSweepFile);
  ObjectReader reader(JsonRef(document), "a sweep");
  reader.require("dbo");
  const std::string file = reader.require("config_file").string();
  const JsonRef config = reader.require("config");
  const JsonRef lists = reader.require("lists");
  reader.done();
  // Files that the config names lie beside it, not beside the sweep.
  Sweep sweep{config_from_json(JsonRef(wrap_json(config.value(), file))), tune_lists_from_json(lists)};
  return sweep;
}

TuneFolder::TuneFolder(std::string folder, const std::string& sweep, TuneShard shard) : log_(nullptr, std::fclose) {
  make_folder(folder);
  const std::string sweep_path = folder + "/" + kSweepFile;
  if (!std::filesystem::exists(sweep_path)) {
    write_file(sweep_path, sweep);
  } else if (read_file(sweep_path) != sweep) {
    throw InputError(sweep_path, "", "is of another sweep (config, lists or version differ): choose another folder");
  }
  path_ = folder + "/" + std::string(kPointsPrefix);
  if (!shard.whole()) path_ += "-" + std::to_string(shard.index) + "-of-" + std::to_string(shard.of);
  path_ += kPointsSuffix;
  if (std::filesystem::exists(path_)) drop_partial_line(path_);
}

void TuneFolder::load(TuneResults& results) const {
  if (std::filesystem::exists(path_)) load_lines(path_, results);
}

void TuneFolder::load_all(const std::string& folder, TuneResults& results) {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kPointsPrefix) && name.ends_with(kPointsSuffix)) paths.push_back(entry.path().string());
  }
  std::sort(paths.begin(), paths.end());
  for (const std::string& path : paths) load_lines(path, results);
}

void TuneFolder::add(std::size_t point, const TuneResult& result) {
  const std::string line = line_of(point, result);
  const std::lock_guard lock(mutex_);
  if (log_ == nullptr) {
    log_.reset(std::fopen(path_.c_str(), "a"));
    if (log_ == nullptr) throw InputError(path_, "", std::strerror(errno));
  }
  if (std::fputs(line.c_str(), log_.get()) < 0 || std::fflush(log_.get()) != 0)
    throw InputError(path_, "", std::string("cannot write: ") + std::strerror(errno));
}

void TuneFolder::finish(const TuneResults& results, const std::vector<std::size_t>& points) {
  log_.reset();
  std::string text;
  for (const std::size_t point : points) text += line_of(point, *results[point]);
  write_file(path_, text);
}

}  // namespace dbo
