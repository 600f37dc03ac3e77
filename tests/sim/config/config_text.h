// Configs as text for tests: a small valid one whose parts a test replaces.
#pragma once

#include <string>
#include <string_view>

#include "sim/base/error.h"
#include "sim/config/config.h"

namespace dbo {

/// A layers-only model with fixed costs on two ranks, plus `more` (", \"key\": value ..."); `model`, `parallel` and
/// `workload` replace those parts.
struct ConfigText {
  std::string model = R"({"layers": 4, "dense_layers": 1})";
  std::string parallel = R"({"data": 2, "expert": 2})";
  std::string workload = R"({"phase": "decode", "tokens_per_rank": 128, "context_tokens": 1024})";
  std::string costs = R"({"source": "fixed"})";
  std::string more = {};

  std::string text() const {
    return "{\"model\": " + model + ", \"parallel\": " + parallel + ", \"workload\": " + workload +
           ", \"costs\": " + costs + more + "}";
  }
};

inline Config read_config(const std::string& text, const std::string& file = "c.json") {
  return config_from_json(JsonRef(json_document(text, file, {.comments = true})));
}
inline Config read_config(const ConfigText& parts) {
  return read_config(parts.text());
}

/// The whole message of the InputError, or "no error".
inline std::string config_error(const std::string& text) {
  try {
    read_config(text);
    return "no error";
  } catch (const InputError& error) {
    return error.what();
  }
}
inline std::string config_error(const ConfigText& parts) {
  return config_error(parts.text());
}

}  // namespace dbo
