// Plan format 1: the JSON form of a plan and its content hash.
#pragma once

#include <string>

#include "sim/base/json.h"
#include "sim/base/json_reader.h"
#include "sim/plan/plan.h"

namespace dbo {

/// The canonical JSON of a plan, with its `hash`.
Json plan_to_json(const Plan& plan);
std::string plan_text(const Plan& plan);  ///< pretty_json of it

/// Reads and checks a plan: every name resolved, every index in range, every rank in exactly one class. Throws
/// InputError with pointer; a `hash` that is there must be right.
Plan plan_from_json(const JsonRef& ref);
Plan load_plan(const std::string& path);

/// Whether a JSON document is a plan (and not a config): it has "format" and "threads".
bool looks_like_plan(const Json& value);

/// Sixteen hexadecimal digits over the canonical text without `hash`.
std::string plan_hash(const Plan& plan);

}  // namespace dbo
