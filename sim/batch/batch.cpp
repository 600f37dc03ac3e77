#include "sim/batch/batch.h"

#include "sim/batch/settings.h"

namespace dbo {

std::int64_t RankBatch::tokens() const {
  std::int64_t total = 0;
  for (const Request& request : requests) total += request.query;
  return total;
}

std::string_view coordination_name(Coordination coordination) {
  return coordination_names()[static_cast<std::size_t>(coordination)];
}

std::vector<std::string_view> coordination_names() {
  return {"v1", "mrv2", "sglang"};
}

}  // namespace dbo
