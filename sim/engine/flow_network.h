// Transfers between ports that are shared max-min fairly, begun and ended at any time: what "network": "flows" moves
// the data of exchanges with.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/cost/cost_table.h"

namespace dbo {

/// At any time each flow is held up by a full port on which no other flow is faster. Rates are whole numbers, rounded
/// down, so ports never carry more than they can; flows end at whole nanoseconds, rounded up. What a flow leaves when
/// it ends goes to the others at once while at most `kExactFlows` are open; with more, shares are set anew at most each
/// 1/64 of the oldest flow's age (and whenever a flow begins), as every pair of ranks would otherwise change all rates.
///
/// Between two ports data keeps its order, as messages of one queue pair and copies of one stream do: a flow waits
/// until all that began before it between its ports have ended.
class FlowNetwork {
 public:
  static constexpr std::size_t kExactFlows = 256;

  struct Ended {
    std::uint32_t tag = 0;
    std::int32_t from = 0, to = 0;
  };

  /// `ports`: work a nanosecond of each.
  explicit FlowNetwork(std::vector<std::int64_t> ports);

  /// Begins a flow at `now`, or when those before it between its ports have ended; shares are set anew by `share`.
  void begin(std::uint32_t tag, const PairFlow& flow, std::int64_t now);
  /// The next instant at which a flow ends or shares change; INT64_MAX: none.
  std::int64_t next() const;
  /// Moves the clock to `now`, no later than `next`, and appends the flows that end then, in the order they began.
  void advance(std::int64_t now, std::vector<Ended>& ended);
  /// Sets shares anew where flows began or ended; returns whether. To be called when all that begins at `now` has.
  bool share(std::int64_t now);

  bool idle() const { return open_.empty(); }
  /// Calls `each(flow, rate)` for the open flows.
  template <class Each>
  void for_each(const Each& each) const {
    for (const Open& open : open_) each(open.flow, open.rate);
  }
  /// Rate of each open flow, in the order they were opened: for audits.
  std::vector<std::pair<PairFlow, std::int64_t>> rates() const;

  /// What the future depends on: numbers that stay when everything repeats, with tags counted from `first_tag`, and
  /// times that shift.
  void append_state(std::int64_t first_tag, std::vector<std::int64_t>& values, std::vector<std::int64_t>& times) const;
  void shift(std::int64_t ns, std::uint32_t tags);

 private:
  struct Open {
    PairFlow flow;
    std::uint32_t tag = 0;
    std::int64_t left = 0, rate = 0;  ///< work left at `since`
    std::int64_t since = 0, begun = 0, end = 0;
  };

  struct Queued {
    PairFlow flow;
    std::uint32_t tag = 0;
  };

  void open(std::uint32_t tag, const PairFlow& flow, std::int64_t now, std::int64_t rate);
  void open_queued(std::int64_t now);
  void set_rates();
  std::int64_t& pair(const PairFlow& flow) {
    return pairs_[static_cast<std::size_t>(flow.out) * ports_.size() + static_cast<std::size_t>(flow.in)];
  }

  std::vector<std::int64_t> ports_;
  std::vector<Open> open_;      ///< in the order they were opened
  std::vector<Queued> queued_;  ///< behind others of their ports, in the order they began
  std::vector<PairFlow> just_ended_;
  /// By out and in port: 0: no flow is open; 1: one is; below 0: one has just ended, at that rate.
  std::vector<std::int64_t> pairs_;
  std::int64_t first_end_ = INT64_MAX;
  std::int64_t share_at_ = INT64_MAX;  ///< when shares are set anew after ends
  bool stale_ = false;                 ///< shares are to be set anew now
  // Scratch of set_rates, by port; flows by port as one array with the places where each port's begin.
  std::vector<std::int64_t> free_;
  std::vector<std::uint32_t> waiting_, begin_, flow_;
  std::vector<char> fixed_;
};

}  // namespace dbo
