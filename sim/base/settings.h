// Small choices that a config makes and a plan carries.
#pragma once

#include <cstdint>
#include <vector>

namespace dbo {

enum class Execution : std::uint8_t { Eager, Graph };

enum class SmControl : std::uint8_t { Limit, GreenContext, None };

enum class RoutingKind : std::uint8_t { Balanced, Uniform, Zipf, Table };

/// Which experts tokens go to; sim/plan/routing.h turns it into rows and bytes.
struct Routing {
  RoutingKind kind = RoutingKind::Balanced;
  double alpha = 0;  ///< Zipf exponent
  std::uint64_t seed = 0;
  bool per_layer = false;                  ///< a fresh draw for every layer
  std::vector<std::vector<double>> table;  ///< Table: share of each expert, one row for all layers or a row a layer
  int redundant = 0;                       ///< replicas beyond the model's experts

  friend bool operator==(const Routing&, const Routing&) = default;
};

/// GPUs that are slower than the others.
struct Straggler {
  std::vector<int> ranks;     ///< ascending
  double compute_factor = 1;  ///< times as long as their compute ops take otherwise
  double wire_factor = 1;     ///< times as long as their NVLink and NIC ports take for the same bytes

  friend bool operator==(const Straggler&, const Straggler&) = default;
};

}  // namespace dbo
