// The engine's times as a trace.
#pragma once

#include "sim/engine/engine.h"
#include "traces/trace.h"

namespace dbo {

/// A trace of the recorded groups, each as its lowest rank; or, with `ranks`, of these ranks, each with the times of
/// its group, which must be recorded. With `layers`, of ops of these layers alone. Wires become slices of their own on
/// a lane "wire"; event waits and transfers become flows; SMs and links in use become counters. Metadata: "plan_hash",
/// "ranks" (how many ranks each traced rank stands for: one that was asked for only itself), "layers" when they were
/// chosen.
Trace predicted_trace(const Plan& plan, const CostTable& costs, const EngineResult& result,
                      const std::vector<int>& recorded, const std::vector<int>& ranks = {},
                      const std::vector<int>& layers = {});

}  // namespace dbo
