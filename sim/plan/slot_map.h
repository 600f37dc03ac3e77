// Which slot of a buffer each launch of a plan uses.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/plan/linearise.h"
#include "sim/plan/plan.h"

namespace dbo {

/// The slot of `buffer` that an op uses: its ubatch, or its call, modulo the slots. An op that is no dispatch or
/// combine uses the slot of its ubatch's latest call before it; slot 0 when there is none.
class SlotMap {
 public:
  SlotMap(const Plan& plan, const Linear& linear);
  int slot(BufferId buffer, std::uint32_t plan_op) const;

 private:
  const Plan& plan_;
  const Linear& linear_;
  std::vector<std::uint32_t> call_;  ///< by op
};

}  // namespace dbo
