#include "sim/engine/sharing.h"

#include <algorithm>
#include <array>

#include "sim/base/error.h"

namespace dbo {
namespace {

// Products of bytes and rates pass 64 bits; used while costs are laid out, not in the inner loop.
__extension__ using Wide = __int128;

/// bytes over time, of a rate: rounded up, at most the whole.
std::int32_t share_of(std::int64_t bytes, Ns time, std::int64_t bytes_per_s) {
  if (bytes <= 0 || bytes_per_s <= 0 || time <= Ns{}) return 0;
  const Wide asked = static_cast<Wide>(bytes) * 1'000'000'000 * kFullSpeed;
  const Wide rate = static_cast<Wide>(bytes_per_s) * time.count();
  const Wide share = (asked + rate - 1) / rate;
  return static_cast<std::int32_t>(std::min<Wide>(share, kFullSpeed));
}

std::int32_t partition_limit(const Plan& plan, const OpDef& op) {
  if (plan.sm.control != SmControl::GreenContext || plan.sm.comm <= 0) return INT32_MAX;
  const bool comm = op.sms == SmPool::Comm || (op.sms == SmPool::All && op.lane == kCommLane);
  return comm ? plan.sm.comm + plan.sm.idle : plan.sm.compute;
}

constexpr std::int32_t Share::*kResources[] = {&Share::hbm, &Share::link, &Share::nic};
constexpr Limit kLimits[] = {Limit::Hbm, Limit::Link, Limit::Nic};

void slow_to(Runner& runner, std::int64_t speed, Limit limit) {
  if (speed >= runner.speed) return;
  runner.speed = std::max<std::int64_t>(speed, 1);
  runner.limit = limit;
}

/// What memory traffic of others leaves a kernel that waits for each of its own accesses. Several of its blocks on one
/// SM wait at the same time: there the longer of the two counts, the SM's rate or the wait.
std::int64_t loaded_speed(const Runner& runner, std::int64_t asked_hbm) {
  const std::int64_t others = std::min(asked_hbm - runner.share->hbm, kFullSpeed);
  const std::int64_t longer = kFullSpeed + ((others * runner.share->loaded) >> kSpeedBits);
  if (runner.share->least_sms < runner.share->most_sms)
    return std::min(runner.unshared, (kFullSpeed << kSpeedBits) / longer);
  return (runner.unshared << kSpeedBits) / longer;
}

/// Fair shares of one resource that is asked for more than there is.
void divide(Runner* runners, int count, std::int32_t Share::*resource, Limit limit, std::int64_t left) {
  std::array<int, 64> order;
  int asking = 0;
  for (int i = 0; i < count; ++i)
    if (runners[i].share->*resource > 0) order[static_cast<std::size_t>(asking++)] = i;
  std::sort(order.begin(), order.begin() + asking, [&](int a, int b) {
    const std::int32_t x = runners[a].share->*resource, y = runners[b].share->*resource;
    return x != y ? x < y : a < b;
  });
  for (int i = 0; i < asking; ++i) {
    Runner& runner = runners[order[static_cast<std::size_t>(i)]];
    const std::int64_t asked = runner.share->*resource, fair = left / (asking - i);
    const std::int64_t given = std::min(asked, fair);
    left -= given;
    if (given < asked) slow_to(runner, (given << kSpeedBits) / asked, limit);
  }
}

/// The same for the common case of two ops.
void divide_two(Runner& a, Runner& b, std::int32_t Share::*resource, Limit limit, std::int64_t left) {
  Runner &less = a.share->*resource <= b.share->*resource ? a : b, &more = &less == &a ? b : a;
  const std::int64_t given = std::min<std::int64_t>(less.share->*resource, left / 2);
  if (given < less.share->*resource) slow_to(less, (given << kSpeedBits) / (less.share->*resource), limit);
  slow_to(more, ((left - given) << kSpeedBits) / (more.share->*resource), limit);
}

}  // namespace

Share op_share(const Plan& plan, const OpDef& op, const OpCost& cost, const MachineRates& machine) {
  const OpDemand& demand = cost.demand;
  Share share;
  share.hbm = share_of(demand.hbm_bytes, cost.time, machine.hbm_bytes_per_s);
  share.link = share_of(demand.link_bytes, cost.time, machine.link_bytes_per_s);
  share.nic = share_of(demand.nic_bytes, cost.time, machine.nic_bytes_per_s);
  if (cost.beside > cost.time)
    share.beside = static_cast<std::int32_t>(cost.time.count() * kFullSpeed / cost.beside.count());
  if (machine.sms > 0) {
    share.sms = std::clamp(demand.sms, 0, machine.sms);
    share.most_sms = std::min(share.sms, partition_limit(plan, op));
    share.least_sms = std::min<std::int32_t>(
        static_cast<std::int32_t>(ceil_div(share.sms, std::max(demand.blocks_per_sm, 1))), share.most_sms);
  }
  share.tiles = std::max(demand.tiles, 0);
  share.sm_share = std::clamp(demand.sm_share, 0, 1024);
  share.loaded = static_cast<std::int32_t>(std::clamp<std::int64_t>(demand.loaded, 0, 1024) * (kFullSpeed / 1024));
  share.cooperative = demand.cooperative;
  share.block_ns = demand.block.count();
  return share;
}

Share wire_share(const OpCost& cost, const MachineRates& machine) {
  Share share;
  share.hbm = share_of(cost.wire_traffic.hbm_bytes, cost.wire, machine.hbm_bytes_per_s);
  share.link = share_of(cost.wire_traffic.link_bytes, cost.wire, machine.link_bytes_per_s);
  share.nic = share_of(cost.wire_traffic.nic_bytes, cost.wire, machine.nic_bytes_per_s);
  return share;
}

std::int64_t sm_speed(const Share& share, std::int32_t held, const MachineRates& machine) {
  if (held >= share.sms) return kFullSpeed;
  if (held <= 0) return 0;
  // In 2^-20 of the op's time on all its SMs. Everything below stays far within 64 bits.
  const std::int64_t by_sms = (kFullSpeed * share.sm_share) / 1024, by_memory = share.hbm;
  const std::int64_t by_ports = std::max(share.link, share.nic);
  std::int64_t sms_now = by_sms, memory_now = by_memory;
  if (share.tiles > 0) {
    sms_now = by_sms * ceil_div(share.tiles, held) / ceil_div(share.tiles, share.sms);
  } else {
    sms_now = by_sms * share.sms / held;
  }
  if (machine.sm_bytes_per_s > 0 && machine.hbm_bytes_per_s > 0) {
    // Traffic of `hbm` of the machine's rate over `held` SMs: time grows to what they carry.
    const Wide needed = static_cast<Wide>(machine.hbm_bytes_per_s) * by_memory;
    const Wide carried = static_cast<Wide>(machine.sm_bytes_per_s) * held;
    memory_now = std::max(by_memory, static_cast<std::int64_t>(needed / carried));
  }
  const std::int64_t rest = kFullSpeed - std::max({by_sms, by_memory, by_ports});
  const std::int64_t now = rest + std::max({sms_now, memory_now, by_sms, by_memory, by_ports});
  return std::clamp<std::int64_t>((kFullSpeed << kSpeedBits) / now, 1, kFullSpeed);
}

void share_out(Runner* runners, int count, std::int64_t hbm_taken) {
  bool comm = false, compute = false;
  std::int64_t asked[3] = {hbm_taken, 0, 0};
  for (int i = 0; i < count; ++i) {
    const Runner& runner = runners[i];
    comm = comm || (runner.comm && runner.share->loaded == 0);
    compute = compute || runner.compute;
    for (int r = 0; r < 3; ++r) asked[r] += runner.share->*kResources[r];
  }
  const bool beside = comm && compute;
  for (int i = 0; i < count; ++i) {
    Runner& runner = runners[i];
    runner.unshared = runner.sm_speed;
    const bool slowed = beside && (runner.compute || (runner.comm && runner.share->loaded == 0));
    if (slowed && runner.sm_speed > 0)
      runner.unshared = std::max<std::int64_t>((runner.sm_speed * runner.share->beside) >> kSpeedBits, 1);
    runner.speed = runner.unshared;
    runner.limit = Limit::None;
    if (runner.comm && runner.share->loaded > 0) slow_to(runner, loaded_speed(runner, asked[0]), Limit::Hbm);
  }
  for (int r = 0; r < 3; ++r) {
    if (asked[r] <= kFullSpeed) continue;
    const std::int64_t left = kFullSpeed - (r == 0 ? hbm_taken : 0);
    if (count == 2) {
      divide_two(runners[0], runners[1], kResources[r], kLimits[r], left);
    } else {
      divide(runners, count, kResources[r], kLimits[r], left);
    }
  }
}

}  // namespace dbo
