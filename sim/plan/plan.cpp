#include "sim/plan/plan.h"

#include "sim/base/error.h"

namespace dbo {

std::optional<OpId> Plan::find_op(std::string_view name) const {
  for (std::size_t i = 0; i < ops.size(); ++i)
    if (ops[i].name == name) return static_cast<OpId>(i);
  return std::nullopt;
}

int Plan::class_of(int rank) const {
  for (std::size_t c = 0; c < classes.size(); ++c)
    for (const auto& [begin, end] : classes[c].ranks)
      if (rank >= begin && rank < end) return static_cast<int>(c);
  throw InternalError("rank " + std::to_string(rank) + " is in no class of the plan");
}

}  // namespace dbo
