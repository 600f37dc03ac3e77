#include <algorithm>
#include <charconv>
#include <map>
#include <optional>

#include "traces/layer_recovery.h"

namespace dbo {
namespace {

/// A range that names an op, a layer, or both.
struct Range {
  std::int64_t start = 0, end = 0;
  std::uint32_t name = 0, row = 0;
  std::optional<RangeOp> op;
  std::optional<std::int32_t> layer;
  std::int32_t step = 0;
  int count = 0;  ///< how many of the same name (and layer) came before it in the step
};

std::optional<std::int32_t> number_behind(std::string_view text, std::string_view what) {
  const auto at = text.find(what);
  if (at == std::string_view::npos) return std::nullopt;
  const char* from = text.data() + at + what.size();
  std::int32_t value = 0;
  const auto [stop, error] = std::from_chars(from, text.data() + text.size(), value);
  if (error != std::errc() || value < 0 || value > 100000) return std::nullopt;
  return value;
}

std::optional<std::int32_t> layer_in(std::string_view name) {
  for (const std::string_view what : {"layers.", "layer ", "layer_", "layer="})
    if (const auto layer = number_behind(name, what)) return layer;
  return std::nullopt;
}

std::optional<int> ubatch_in(std::string_view name) {
  for (const std::string_view what : {"ubatch ", "ubatch_", "ubatch=", "microbatch ", "micro_batch_", "mb="})
    if (const auto ubatch = number_behind(name, what)) return *ubatch;
  if (name.find("(F)") != std::string_view::npos) return 0;
  if (name.find("(B)") != std::string_view::npos || name.find("(W)") != std::string_view::npos) return 1;
  return std::nullopt;
}

bool is_backward(std::string_view name) {
  return name.find("(B)") != std::string_view::npos || name.find("(W)") != std::string_view::npos ||
         name.find("ackward") != std::string_view::npos;
}

/// Ranges of one thread, or of all, by start; the innermost that holds a time is the last to start among those.
class RangeSearch {
 public:
  void add(std::uint32_t range) { sorted_.push_back(range); }
  void sort(const std::vector<Range>& ranges) {
    std::stable_sort(sorted_.begin(), sorted_.end(), [&](std::uint32_t a, std::uint32_t b) {
      return ranges[a].start != ranges[b].start ? ranges[a].start < ranges[b].start : ranges[a].end > ranges[b].end;
    });
  }
  template <typename Wanted>
  std::optional<std::uint32_t> find(const std::vector<Range>& ranges, std::int64_t time, Wanted wanted) const {
    auto at = std::upper_bound(sorted_.begin(), sorted_.end(), time,
                               [&](std::int64_t t, std::uint32_t range) { return t < ranges[range].start; });
    // Ranges nest a few deep; far behind the time there is nothing that could still hold it.
    for (int looked = 0; at != sorted_.begin() && looked < 256; ++looked) {
      --at;
      if (time < ranges[*at].end && wanted(ranges[*at])) return *at;
    }
    return std::nullopt;
  }

 private:
  std::vector<std::uint32_t> sorted_;
};

class Placer {
 public:
  Placer(ClassifiedTrace& trace, const KernelRules& rules) : trace_(trace) { collect(rules); }

  bool run() {
    if (ranges_.empty()) return false;
    range_of_.assign(trace_.info.size(), UINT32_MAX);
    for (std::uint32_t i = 0; i < trace_.info.size(); ++i) find_range(i);
    bool attention = false, other = false;
    for (const std::uint32_t range : range_of_) {
      if (range == UINT32_MAX) continue;
      (ranges_[range].op->attention_whole ? attention : other) = true;
    }
    if (!attention || !other) return false;
    count_ranges();
    find_cores();
    for (std::uint32_t i = 0; i < trace_.info.size(); ++i)
      if (range_of_[i] != UINT32_MAX) place(i, range_of_[i]);
    return true;
  }

 private:
  void collect(const KernelRules& rules) {
    std::map<std::uint32_t, std::pair<std::optional<RangeOp>, std::optional<std::int32_t>>> meaning;
    for (const RawRange& raw : trace_.raw.ranges) {
      if (raw.gpu) continue;
      auto [at, fresh] = meaning.try_emplace(raw.name);
      if (fresh) at->second = {rules.range(trace_.raw.names[raw.name]), layer_in(trace_.raw.names[raw.name])};
      if (!at->second.first && !at->second.second) continue;
      const auto index = static_cast<std::uint32_t>(ranges_.size());
      ranges_.push_back(
          {raw.start_ns, raw.start_ns + raw.dur_ns, raw.name, raw.row, at->second.first, at->second.second, 0, 0});
      by_row_[raw.row].add(index);
      all_.add(index);
    }
    for (auto& [row, search] : by_row_) search.sort(ranges_);
    all_.sort(ranges_);
  }

  std::optional<std::uint32_t> around(std::uint32_t row, std::int64_t time, bool op) const {
    const auto wanted = [&](const Range& range) { return op ? range.op.has_value() : range.layer.has_value(); };
    const auto own = by_row_.find(row);
    if (own != by_row_.end())
      if (const auto found = own->second.find(ranges_, time, wanted)) return found;
    return all_.find(ranges_, time, wanted);  // launched by a helper thread while the range was open
  }

  void find_range(std::uint32_t i) {
    const SliceInfo& info = trace_.info[i];
    if (info.call == UINT32_MAX) return;
    const RawCall& call = trace_.raw.calls[info.call];
    const auto op = around(call.row, call.start_ns, true);
    if (!op) return;
    range_of_[i] = *op;
    Range& range = ranges_[*op];
    range.step = info.step;
    if (!range.layer)
      if (const auto layer = around(call.row, call.start_ns, false)) range.layer = ranges_[*layer].layer;
  }

  void count_ranges() {
    std::vector<std::uint32_t> used = range_of_;
    std::sort(used.begin(), used.end());
    used.erase(std::unique(used.begin(), used.end()), used.end());
    std::erase(used, UINT32_MAX);
    std::stable_sort(used.begin(), used.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return ranges_[a].start < ranges_[b].start; });
    std::map<std::tuple<std::int32_t, std::uint32_t, std::int32_t>, int> seen;
    for (const std::uint32_t r : used)
      ranges_[r].count = seen[{ranges_[r].step, ranges_[r].name, ranges_[r].layer.value_or(-1)}]++;
  }

  /// Start of the attention core of each range, on the GPU.
  void find_cores() {
    for (std::uint32_t i = 0; i < trace_.info.size(); ++i) {
      if (range_of_[i] == UINT32_MAX || trace_.info[i].role != Role::Attention) continue;
      const std::int64_t start = trace_.raw.slices[i].start_ns;
      const auto [at, fresh] = core_.emplace(range_of_[i], start);
      if (!fresh) at->second = std::min(at->second, start);
    }
  }

  OpKind kind_of(std::uint32_t i, const Range& range) const {
    switch (trace_.info[i].role) {
      case Role::DispatchSetup:
      case Role::Dispatch:
        return OpKind::D;
      case Role::DispatchSend:
        return OpKind::DSend;
      case Role::DispatchRecv:
        return OpKind::DRecv;
      case Role::CombineSetup:
      case Role::Combine:
        return OpKind::C;
      case Role::CombineSend:
        return OpKind::CSend;
      case Role::CombineRecv:
        return OpKind::CRecv;
      default:
        break;
    }
    if (is_backward(trace_.raw.names[range.name])) return OpKind::Other;
    // Casts and copies around a dispatch or combine are no communication.
    if (is_comm(range.op->kind)) return OpKind::Other;
    if (!range.op->attention_whole) return range.op->kind;
    const auto core = core_.find(range_of_[i]);
    return core == core_.end() || trace_.raw.slices[i].start_ns < core->second ? OpKind::A0 : OpKind::A1;
  }

  void place(std::uint32_t i, std::uint32_t r) {
    const Range& range = ranges_[r];
    const std::string& name = trace_.raw.names[range.name];
    SliceInfo& info = trace_.info[i];
    info.kind = kind_of(i, range);
    info.label = label(range.name);
    info.layer = range.layer ? *range.layer : range.count;
    info.ubatch = static_cast<std::int16_t>(std::clamp(ubatch_in(name).value_or(range.layer ? range.count : 0), 0, 63));
  }

  std::uint32_t label(std::uint32_t name) {
    const auto [at, fresh] = label_of_name_.emplace(name, static_cast<std::uint32_t>(trace_.labels.size()));
    if (fresh) trace_.labels.push_back(trace_.raw.names[name]);
    return at->second;
  }

  ClassifiedTrace& trace_;
  std::vector<Range> ranges_;
  std::map<std::uint32_t, RangeSearch> by_row_;
  RangeSearch all_;
  std::vector<std::uint32_t> range_of_;  ///< by slice
  std::map<std::uint32_t, std::int64_t> core_;
  std::map<std::uint32_t, std::uint32_t> label_of_name_;
};

}  // namespace

bool place_by_ranges(ClassifiedTrace& trace, const KernelRules& rules) {
  return Placer(trace, rules).run();
}

}  // namespace dbo
