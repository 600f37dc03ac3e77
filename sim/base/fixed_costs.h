// Durations somebody states instead of having them worked out: teaching cases and tests.
#pragma once

#include "sim/base/json_reader.h"
#include "sim/base/units.h"

namespace dbo {

/// Per-ubatch durations, the same on every rank and layer.
struct FixedCosts {
  struct Exchange {
    Ns send{}, wire{}, recv{}, copy{};  ///< copy: combine only

    friend bool operator==(const Exchange&, const Exchange&) = default;
  };

  Ns a0{}, a1{}, mlp{}, s{}, ffn{};
  Exchange dispatch, combine;
  Ns host{};  ///< host time of each launch

  friend bool operator==(const FixedCosts&, const FixedCosts&) = default;
};

/// Reads the keys A0_us, A1_us, MLP_us, S_us, FFN_us, D, C and host_us; absent ones are 0. Leaves "source" to the
/// caller and does not call `done`, so that a caller may know more keys. Times are rounded to the nearest ns.
FixedCosts read_fixed_costs(ObjectReader& reader);

}  // namespace dbo
