// When each dispatch and combine of a rank was under way, from whatever slices a trace has of it.
#pragma once

#include <map>
#include <optional>
#include <tuple>

#include "traces/overlap.h"
#include "traces/trace.h"

namespace dbo {

class Transfers {
 public:
  Transfers(const Trace& trace, std::int32_t rank);

  /// From the end of the send to the arrival, or while the comm kernel ran. Nothing when the trace shows no such
  /// transfer or it took no time.
  std::optional<Interval> find(bool dispatch, std::int32_t layer, int ubatch) const;

  struct Parts {
    std::optional<Interval> whole;  ///< wire or comm kernel
    bool kernel = false;            ///< a comm kernel, which is busy while the transfer is under way
    std::optional<std::int64_t> sent, arrived;
  };
  using Key = std::tuple<bool, std::int32_t, int>;
  const std::map<Key, Parts>& all() const { return parts_; }
  static std::optional<Interval> interval(const Parts& parts);

 private:
  std::map<Key, Parts> parts_;
};

}  // namespace dbo
