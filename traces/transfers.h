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
    std::int64_t waited = 0;  ///< by its receive, which stood at the head of its lane before the data was there
  };
  using Key = std::tuple<bool, std::int32_t, int>;
  const std::map<Key, Parts>& all() const { return parts_; }
  static std::optional<Interval> interval(const Parts& parts);
  /// Its slices; null when the trace shows none.
  const Parts* parts(bool dispatch, std::int32_t layer, int ubatch) const;
  /// Whether the end of the transfer is known: nobody saw when a wire ended whose receive came after it.
  static bool end_seen(const Parts& parts, Ns slack) { return parts.whole || parts.waited > slack.count(); }

 private:
  std::map<Key, Parts> parts_;
};

}  // namespace dbo
