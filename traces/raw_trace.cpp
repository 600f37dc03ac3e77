#include "traces/raw_trace.h"

namespace dbo {

std::uint32_t NameTable::add(std::string_view text) {
  const auto at = ids_.find(text);
  if (at != ids_.end()) return at->second;
  const auto id = static_cast<std::uint32_t>(texts_.size());
  texts_.emplace_back(text);
  ids_.emplace(texts_.back(), id);
  return id;
}

}  // namespace dbo
