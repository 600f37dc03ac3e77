// Makes sense of a foreign trace: what each GPU slice is, which rank and lane it is on, and, as far as order, streams
// and named ranges tell, which op of which layer and ubatch it belongs to.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "traces/kernel_rules.h"
#include "traces/raw_trace.h"
#include "traces/trace.h"

namespace dbo {

/// What was found out about one GPU slice.
struct SliceInfo {
  Role role = Role::Unknown;
  KernelClass cls = KernelClass::Compute;
  OpKind kind = OpKind::Other;  ///< Other: not placed in a layer
  std::int16_t ubatch = 0;
  std::int32_t layer = -1;
  std::int32_t rank = 0;
  std::uint32_t stream = 0;         ///< index into ClassifiedTrace::streams
  std::uint32_t label = 0;          ///< index into ClassifiedTrace::labels; 0: none
  std::int32_t step = 0;            ///< which forward pass of the trace
  std::uint32_t call = UINT32_MAX;  ///< index into RawTrace::calls of the host call that launched it
};

/// An in-order queue of one GPU.
struct Stream {
  std::int32_t rank = 0;
  std::uint32_t row = 0;              ///< in RawTrace::rows
  std::string name;                   ///< "stream 7", or the thread's name
  std::string lane;                   ///< "compute", "comm", "compute 2": by what most of its time is spent on
  std::vector<std::uint32_t> slices;  ///< by start, then file order
};

struct ClassifiedTrace {
  RawTrace raw;
  std::vector<SliceInfo> info;             ///< by slice
  std::vector<Stream> streams;             ///< by rank, then stream number
  std::vector<std::string> labels = {""};  ///< named ranges slices were launched in
  int ubatches = 1;
  int layers = 0;        ///< placed; 0 when no layer was recognised
  int dense_layers = 0;  ///< leading ones without dispatch
  int steps = 1;
  std::string how;  ///< "ranges" (named ranges of the host), "order" (anchor kernels), or "" when nothing was placed
  std::vector<std::pair<std::string, Ns>> unknown;  ///< kernel names no rule matched, by time spent, longest first

  std::vector<std::int32_t> ranks() const;
};

/// Takes the trace over. `raw` must hold GPU slices or generic ones (RawTrace::slices).
ClassifiedTrace classify(RawTrace raw, const KernelRules& rules);

/// Consecutive slices of one stream that belong to the same op become one op from first start to last end. Ops found by
/// named ranges are called after them (and are OTHER for ranges that are no kind of op); slices that belong to nothing
/// become OTHER with the kernel's short name. Zero-length slices are left out. Lanes are the streams'.
/// `step` -1: all passes of the trace.
Trace ops_of(const ClassifiedTrace& trace, std::int32_t step = -1);

/// One op a slice, OTHER when not placed.
Trace slices_of(const ClassifiedTrace& trace);

/// "void f<int>(int)" to "f": no return type, template or call arguments.
std::string short_kernel_name(std::string_view name);

}  // namespace dbo
