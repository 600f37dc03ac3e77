// The parts of a config, each read and checked on its own; config_reader.cpp puts them together.
#pragma once

#include <string>
#include <string_view>

#include "sim/config/config.h"

namespace dbo {

/// Counts that index 32-bit metadata (tokens, requests, context lengths).
inline constexpr std::int64_t kMaxTokens = (std::int64_t{1} << 30) - 1;

/// `path` as seen from the folder of ref's file.
std::string path_beside(const std::string& file, const std::string& path);

WorkloadConfig read_workload(const JsonRef& ref, int data_ranks);
/// A step as "steps" lists it, or the explicit form of a workload.
StepBatch read_step(const JsonRef& ref, int data_ranks);

/// `ref` absent: every default.
OverlapConfig read_overlap(const std::optional<JsonRef>& ref);
ExecutionConfig read_execution(const std::optional<JsonRef>& ref);
CostConfig read_costs(const std::optional<JsonRef>& ref);
Routing read_routing(const std::optional<JsonRef>& ref, const ModelShape& model);

/// Fails on SM counts that the transport or the GPU cannot have. `overlap_ref` is the place of "overlap", or the whole
/// config when it has none.
void check_sms(const JsonRef& overlap_ref, const OverlapConfig& overlap, const GpuSpec& gpu);

}  // namespace dbo
