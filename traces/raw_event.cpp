#include "traces/raw_event.h"

#include <charconv>
#include <cmath>

#include "traces/trace_reader.h"

namespace dbo {
namespace {

bool is_scalar(char first) {
  return first != '{' && first != '[';
}

/// The characters of a text or number, whichever it is written as; nothing for objects and arrays.
bool read_text(JsonScanner& scanner, std::string& to) {
  if (!is_scalar(scanner.peek())) {
    scanner.skip_value();
    return false;
  }
  bool quoted = false;
  to.assign(scanner.string_or_scalar(quoted));
  return quoted || to != "null";
}

std::int64_t read_whole(JsonScanner& scanner) {
  if (!is_scalar(scanner.peek())) {
    scanner.skip_value();
    return RawEvent::kAbsent;
  }
  bool quoted = false;
  return whole_number(scanner.string_or_scalar(quoted));
}

bool read_time(JsonScanner& scanner, std::int64_t& ns) {
  if (!is_scalar(scanner.peek())) {
    scanner.skip_value();
    return false;
  }
  bool quoted = false;
  return parse_micros(scanner.string_or_scalar(quoted), ns);
}

}  // namespace

std::int64_t whole_number(std::string_view text) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc() && stop == end && !text.empty()) return value;
  double real = 0;
  const auto [real_stop, real_error] = std::from_chars(text.data(), end, real);
  if (real_error == std::errc() && real_stop == end && !text.empty() && std::abs(real) < 9e15 &&
      std::floor(real) == real)
    return static_cast<std::int64_t>(real);
  return RawEvent::kAbsent;
}

bool parse_micros(std::string_view text, std::int64_t& ns) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '+')) text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  if (text.empty()) return false;
  const bool negative = text.front() == '-';
  std::size_t i = negative ? 1 : 0;
  // 126 years of nanoseconds: starts and lengths within it can be added and subtracted without a second thought.
  constexpr std::int64_t kMost = 4'000'000'000'000'000;
  std::int64_t micros = 0;
  const std::size_t first = i;
  for (; i < text.size() && text[i] >= '0' && text[i] <= '9'; ++i) {
    if (micros > (kMost - 9) / 10) return false;
    micros = micros * 10 + (text[i] - '0');
  }
  bool plain = i > first;
  std::int64_t fraction = 0;
  if (plain && i < text.size() && text[i] == '.') {
    int digits = 0;
    std::int64_t round = 0;
    for (++i; i < text.size() && text[i] >= '0' && text[i] <= '9'; ++i, ++digits) {
      if (digits < 3) fraction = fraction * 10 + (text[i] - '0');
      if (digits == 3) round = text[i] >= '5' ? 1 : 0;
    }
    for (; digits < 3; ++digits) fraction *= 10;
    fraction += round;
  }
  if (plain && i == text.size()) {
    ns = (micros * 1000 + fraction) * (negative ? -1 : 1);
    return true;
  }
  double real = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), real);
  if (error != std::errc() || stop != text.data() + text.size() || !std::isfinite(real)) return false;
  if (std::abs(real) > static_cast<double>(kMost)) return false;
  ns = std::llround(real * 1000.0);
  return true;
}

void RawEvent::clear() {
  empty = true;
  for (std::string* text : {&phase, &name, &category, &pid, &tid, &id, &arg_name, &arg_labels, &sync_kind, &op, &lane})
    text->clear();
  has_name = has_ts = has_dur = bad_time = has_args = false;
  ts_ns = dur_ns = 0;
  for (std::int64_t* number :
       {&stream, &device, &correlation, &wait_on_stream, &record_correlation, &layer, &ubatch, &rank, &plan_op, &value})
    *number = kAbsent;
  tokens = bytes = sms = waited_ns = 0;
}

void RawEvent::read(JsonScanner& scanner) {
  clear();
  scanner.peek();
  offset = scanner.offset();
  scanner.object([&](std::string_view key) {
    empty = false;
    read_member(scanner, key);
  });
}

void RawEvent::read_member(JsonScanner& scanner, std::string_view key) {
  if (key == "ph") {
    read_text(scanner, phase);
  } else if (key == "name") {
    has_name = read_text(scanner, name);
  } else if (key == "cat") {
    read_text(scanner, category);
  } else if (key == "pid") {
    read_text(scanner, pid);
  } else if (key == "tid") {
    read_text(scanner, tid);
  } else if (key == "ts") {
    has_ts = read_time(scanner, ts_ns);
    bad_time = bad_time || !has_ts;
  } else if (key == "dur") {
    has_dur = read_time(scanner, dur_ns);
    bad_time = bad_time || !has_dur;
  } else if (key == "id") {
    read_text(scanner, id);
  } else if (key == "args" && scanner.peek() == '{') {
    has_args = true;
    read_args(scanner);
  } else {
    scanner.skip_value();
  }
}

void RawEvent::read_args(JsonScanner& scanner) {
  scanner.object([&](std::string_view key) {
    if (key == "stream") {
      stream = read_whole(scanner);
    } else if (key == "device") {
      device = read_whole(scanner);
    } else if (key == "correlation") {
      correlation = read_whole(scanner);
    } else if (key == "name") {
      read_text(scanner, arg_name);
    } else if (key == "labels") {
      read_text(scanner, arg_labels);
    } else if (key == "wait_on_stream") {
      wait_on_stream = read_whole(scanner);
    } else if (key == "wait_on_cuda_event_record_corr_id") {
      record_correlation = read_whole(scanner);
    } else if (key == "cuda_sync_kind") {
      read_text(scanner, sync_kind);
    } else if (key == "op") {
      read_text(scanner, op);
    } else if (key == "lane") {
      read_text(scanner, lane);
    } else if (key == "layer") {
      layer = read_whole(scanner);
    } else if (key == "ubatch") {
      ubatch = read_whole(scanner);
    } else if (key == "rank") {
      rank = read_whole(scanner);
    } else if (key == "plan_op") {
      plan_op = read_whole(scanner);
    } else if (key == "tokens") {
      tokens = read_whole(scanner);
    } else if (key == "bytes") {
      bytes = read_whole(scanner);
    } else if (key == "sms") {
      sms = read_whole(scanner);
    } else if (key == "waited_ns") {
      waited_ns = read_whole(scanner);
    } else if (key == "value") {
      value = read_whole(scanner);
    } else {
      scanner.skip_value();
    }
  });
}

}  // namespace dbo
