// One event of a trace file as read, before anything is known about what it is.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "traces/json_scanner.h"

namespace dbo {

/// Fields are reused from event to event, so that reading allocates little.
struct RawEvent {
  std::uint64_t offset = 0;
  bool empty = true;
  std::string phase, name, category, pid, tid, id;
  bool has_name = false, has_ts = false, has_dur = false, bad_time = false;
  std::int64_t ts_ns = 0, dur_ns = 0;

  // From args.
  bool has_args = false;
  std::string arg_name, arg_labels;
  std::int64_t stream = kAbsent, device = kAbsent, correlation = kAbsent;
  std::int64_t wait_on_stream = kAbsent, record_correlation = kAbsent;
  std::string sync_kind;
  std::string op, lane;  ///< of our own op slices
  std::int64_t layer = kAbsent, ubatch = kAbsent, rank = kAbsent, plan_op = kAbsent, tokens = 0, bytes = 0, sms = 0,
               waited_ns = 0;
  std::int64_t value = kAbsent;  ///< of our own counters

  static constexpr std::int64_t kAbsent = INT64_MIN;

  void clear();
  /// Reads an object. Throws ScanError.
  void read(JsonScanner& scanner);

 private:
  void read_member(JsonScanner& scanner, std::string_view key);
  void read_args(JsonScanner& scanner);
};

/// A whole number that may be quoted or have a zero fraction; kAbsent when it is something else.
std::int64_t whole_number(std::string_view text);

}  // namespace dbo
