// The engine's times as a trace.
#pragma once

#include "sim/engine/engine.h"
#include "traces/trace.h"

namespace dbo {

/// A trace of the recorded groups, each as its lowest rank. Wires become slices of their own on a lane "wire"; event
/// waits and transfers become flows; SMs and links in use become counters. Metadata: "plan_hash", "ranks" (how many
/// ranks each traced rank stands for).
Trace predicted_trace(const Plan& plan, const CostTable& costs, const EngineResult& result,
                      const std::vector<int>& recorded);

}  // namespace dbo
