// As much of JSON Schema as the config's schema uses: a validator, and the key paths it names.
#pragma once

#include <set>
#include <string>

#include "sim/base/json.h"

namespace dbo {

/// The first violation as "POINTER: what is wrong", or empty. Throws InternalError on a keyword it does not know.
std::string schema_violation(const Json& schema, const Json& value);

/// Every property path of the schema, "*" for array items: "/workload/ranks/*/requests".
std::set<std::string> schema_paths(const Json& schema);

}  // namespace dbo
