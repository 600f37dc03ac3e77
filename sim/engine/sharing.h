// How the running ops of one rank share it: rates in fixed point, from demands at full speed.
#pragma once

#include <cstdint>

#include "sim/cost/cost_table.h"

namespace dbo {

/// Full speed, and the whole of a resource: shares and speeds are in 2^-20 of it.
inline constexpr int kSpeedBits = 20;
inline constexpr std::int64_t kFullSpeed = std::int64_t{1} << kSpeedBits;

/// What one op (or wire) asks of its rank while it runs at full speed.
struct Share {
  std::int32_t hbm = 0, link = 0, nic = 0;  ///< of what there is; rounded up
  std::int32_t beside = kFullSpeed;         ///< speed beside the other sort
  std::int32_t loaded = 0;                  ///< OpDemand::loaded, in 2^-20
  std::int32_t sms = 0;                     ///< SMs its time is for
  std::int32_t most_sms = 0;                ///< SMs it can ever get: a green context is smaller
  std::int32_t least_sms = 0;               ///< SMs that all its blocks fit on; most_sms where each fills one
  std::int32_t tiles = 0;
  std::int32_t sm_share = 1024;
  bool cooperative = false;   ///< starts on all its SMs or not at all
  std::int64_t block_ns = 0;  ///< its own time between two instants at which its blocks leave their SMs
};

Share op_share(const Plan& plan, const OpDef& op, const OpCost& cost, const MachineRates& machine);
/// Of the wire that a receive waits for.
Share wire_share(const OpCost& cost, const MachineRates& machine);

/// Speed on `held` SMs of an op whose time is for `share.sms`. The part of its time that its SMs change grows by the
/// waves of its tiles (a staircase), or in proportion when it is not made of tiles; the part that its memory traffic
/// takes grows once the SMs cannot carry the traffic; what its ports take stays; the longest of these counts, and the
/// rest stays. 0 SMs: 0.
std::int64_t sm_speed(const Share& share, std::int32_t held, const MachineRates& machine);

/// The shared resource that limits an op, if one does.
enum class Limit : std::uint8_t { None, Hbm, Link, Nic };

/// One running op as share_out sees it.
struct Runner {
  const Share* share = nullptr;
  std::int64_t sm_speed = kFullSpeed;  ///< what its SMs allow
  /// Moves data in a way that slows compute beside it, and is slowed by compute; unless its share is `loaded`: then it
  /// is slowed by memory traffic, and nobody by it.
  bool comm = false;
  bool compute = false;
  std::int64_t speed = kFullSpeed;     ///< out
  std::int64_t unshared = kFullSpeed;  ///< out: speed if there were enough of every resource
  Limit limit = Limit::None;           ///< out
};

/// Sets the speeds of `count` running ops. `hbm_taken`: of memory, what transfers have that nothing holds up. Each
/// resource is shared fairly (nobody gets more than it asks for at full speed, the rest is equal); an op runs at the
/// lowest of what they and its SMs, with the loss beside the other sort, allow: that loss holds what two sorts of
/// traffic cost each other, so it is not added to a shortage of memory. A comm kernel that is `loaded` instead takes
/// longer in proportion to the memory traffic that others ask for. Demands count in full even for an op that another
/// resource slows: so no op that leaves ever slows another, and what they take together never exceeds what there is.
void share_out(Runner* runners, int count, std::int64_t hbm_taken = 0);

}  // namespace dbo
