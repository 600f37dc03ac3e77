#include <map>

#include "traces/layer_recovery.h"

namespace dbo {
namespace {

bool is_dispatch_role(Role role) {
  return role == Role::Dispatch || role == Role::DispatchLowLatency || role == Role::DispatchSend ||
         role == Role::DispatchRecv;
}
bool is_combine_role(Role role) {
  return role == Role::Combine || role == Role::CombineLowLatency || role == Role::CombineSend ||
         role == Role::CombineRecv;
}

/// How often MLPs ran on a rank. One is so many grouped GEMMs as mostly stand together, with no attention or
/// communication between them. Nothing when there are no grouped GEMMs.
std::size_t mlps(const ClassifiedTrace& trace, std::int32_t rank) {
  std::map<std::size_t, std::size_t> runs;  // how many runs of each length
  std::size_t all = 0;
  for (const Stream& stream : trace.streams) {
    if (stream.rank != rank) continue;
    std::size_t run = 0;
    for (const std::uint32_t i : stream.slices) {
      const Role role = trace.info[i].role;
      all += role == Role::Experts ? 1U : 0U;
      if (role == Role::Experts) {
        ++run;
      } else if (run > 0 && (role == Role::Attention || class_of(role) == KernelClass::Comm)) {
        ++runs[run];
        run = 0;
      }
    }
    if (run > 0) ++runs[run];
  }
  std::size_t usual = 1, most = 0;
  for (const auto& [length, count] : runs)
    if (count > most) {
      usual = length;
      most = count;
    }
  return all / usual;
}

/// Attention cores of a rank, counting kernels that follow each other on a stream (a split core and its merge) as one.
std::size_t attention_cores(const ClassifiedTrace& trace, std::int32_t rank) {
  std::size_t cores = 0;
  for (const Stream& stream : trace.streams) {
    if (stream.rank != rank) continue;
    bool inside = false;
    for (const std::uint32_t i : stream.slices) {
      const bool core = trace.info[i].role == Role::Attention;
      if (core && !inside) ++cores;
      inside = core;
    }
  }
  return cores;
}

}  // namespace

void resolve_comm_roles(ClassifiedTrace& trace) {
  for (const Stream& stream : trace.streams) {
    Role next = Role::Unknown;
    for (auto at = stream.slices.rbegin(); at != stream.slices.rend(); ++at) {
      Role& role = trace.info[*at].role;
      if (is_dispatch_role(role) || is_combine_role(role)) next = role;
      if (role == Role::CommSetup && is_dispatch_role(next)) role = Role::DispatchSetup;
      if (role == Role::CommSetup && is_combine_role(next)) role = Role::CombineSetup;
    }
  }
  for (const std::int32_t rank : trace.ranks()) {
    std::size_t dispatches = 0;
    for (const SliceInfo& info : trace.info)
      dispatches += info.rank == rank && info.role == Role::DispatchLowLatency ? 1U : 0U;
    if (dispatches == 0) continue;
    // Without grouped GEMMs attention cores stand for MLPs; dense layers have them too, so they are too many rather.
    const std::size_t blocks = mlps(trace, rank) > 0 ? mlps(trace, rank) : attention_cores(trace, rank);
    const bool halves = 2 * dispatches > 3 * blocks;
    for (const Stream& stream : trace.streams) {
      if (stream.rank != rank) continue;
      bool sent_tokens = false, sent_results = false;
      for (const std::uint32_t i : stream.slices) {
        Role& role = trace.info[i].role;
        if (role == Role::DispatchLowLatency) {
          role = !halves ? Role::Dispatch : sent_tokens ? Role::DispatchRecv : Role::DispatchSend;
          sent_tokens = !sent_tokens;
        } else if (role == Role::CombineLowLatency) {
          role = !halves ? Role::Combine : sent_results ? Role::CombineRecv : Role::CombineSend;
          sent_results = !sent_results;
        }
      }
    }
  }
}

}  // namespace dbo
