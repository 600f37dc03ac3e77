// One case of dispatch, experts and combine on all its players, on whatever machine runs the kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/kernels/a2a_reference.h"

namespace dbo::a2a_test {

/// A machine with a buffer per player. Errors are returned as text; empty is success.
class Rig {
 public:
  virtual ~Rig() = default;

  /// Allocates a buffer per player: control zero, the rest kPoison.
  virtual std::string prepare(const Case& c, const std::vector<kernels::A2aLayout>& layouts) = 0;
  virtual std::string set_tokens(int player, const TokenData& data) = 0;
  /// Host copies of row counts [player][rank] for the transports that size messages by them; else empty.
  virtual std::string set_rows(const std::vector<std::vector<std::int32_t>>& send,
                               const std::vector<std::vector<std::int32_t>>& receive) = 0;
  /// All launches of a dispatch (combine) on all players, waited for.
  virtual std::string dispatch(int slot) = 0;
  virtual std::string combine(int slot) = 0;
  virtual std::vector<std::byte> read(int player) = 0;
  virtual void write(int player, const std::vector<std::byte>& buffer) = 0;
  virtual std::vector<std::uint16_t> result(int player) = 0;  ///< combine's output
};

/// Runs the case `rounds` times, alternating slots, with fresh tokens each time and the buffers poisoned before each;
/// checks views, guards, poison and combined rows. Empty if all is right.
std::string run_case(Rig& rig, const Case& c, int rounds);

}  // namespace dbo::a2a_test
