// The folder of a sweep: what is swept, the points that are finished (kept when the run is killed), and how shards of
// several machines come together.
#pragma once

#include <cstdio>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "sim/search/tune_point.h"

namespace dbo {

/// Which part of the sweep a run does: groups with `index % of == shard`.
struct TuneShard {
  std::size_t index = 0, of = 1;

  bool whole() const { return of == 1; }
};

/// "2/5": the third of five. Throws InputError when it is none.
TuneShard parse_shard(const std::string& text);

/// The config and lists of a sweep as sweep.json keeps them: two sweeps with the same text have the same points.
std::string sweep_text(const Config& config, const TuneLists& lists);

struct Sweep {
  Config config;
  TuneLists lists;
};
/// Reads sweep.json of a folder.
Sweep read_sweep(const std::string& folder);

/// Results by point; absent where none is there yet.
using TuneResults = std::vector<std::optional<TuneResult>>;

class TuneFolder {
 public:
  /// Creates the folder or takes up the sweep in it. Throws InputError when it holds another one.
  TuneFolder(std::string folder, const std::string& sweep, TuneShard shard);

  /// Adds the finished points of this shard's earlier runs. A line that was cut off when a run was killed is dropped.
  void load(TuneResults& results) const;
  /// Adds those of every shard.
  static void load_all(const std::string& folder, TuneResults& results);

  /// Keeps one point; from any thread. It is in the system's hands when this returns.
  void add(std::size_t point, const TuneResult& result);
  /// Writes the shard's points anew in order, so that the file does not tell who finished first.
  void finish(const TuneResults& results, const std::vector<std::size_t>& points);

 private:
  std::string path_;
  std::mutex mutex_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> log_;
};

}  // namespace dbo
