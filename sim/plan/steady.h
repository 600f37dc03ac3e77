// The repeated part of a plan: the layers that go on without end when a steady period is asked for.
#pragma once

#include <optional>

#include "sim/plan/plan.h"

namespace dbo {

/// The block of the MoE layers: the one whose repeat covers the experts. Empty when no thread of the class repeats one.
std::optional<BlockId> moe_block(const Plan& plan, int class_index);

/// Iterations of the MoE repeat, and layers each covers; 0 when there is none.
int moe_iterations(const Plan& plan, int class_index);
int moe_stride(const Plan& plan, int class_index);

/// The same plan with `count` iterations of every MoE repeat. Layer numbers past the model's own stand for layers like
/// the others.
Plan with_moe_iterations(const Plan& plan, int count);

}  // namespace dbo
