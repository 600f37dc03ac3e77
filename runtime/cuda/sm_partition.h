// Disjoint sets of SMs for the compute and the comm lane, by green contexts.
#pragma once

#include <cuda.h>

#include <utility>

#include "runtime/cuda/handles.h"

namespace dbo::runtime {

/// Two green contexts of one GPU, from one split so that they cannot overlap. Kernels keep to the SMs of the stream
/// they were launched or captured on; L2, memory and links stay shared. Never made current: only their streams are
/// used.
class SmPartition {
 public:
  SmPartition() = default;
  /// `comm_sms` are rounded up to what the hardware can set aside (Hopper: multiples of 8). The calling thread must
  /// have started the GPU. Throws CudaError when the driver cannot, InputError when nothing would be left for compute.
  static SmPartition create(int gpu, int comm_sms);
  ~SmPartition() { reset(); }
  SmPartition(SmPartition&& other) noexcept { swap(other); }
  SmPartition& operator=(SmPartition&& other) noexcept {
    swap(other);
    return *this;
  }

  int comm_sms() const { return comm_sms_; }
  int compute_sms() const { return compute_sms_; }
  /// Streams must be destroyed before the partition.
  Stream compute_stream() const;
  Stream comm_stream() const;

 private:
  void reset();
  void swap(SmPartition& other) noexcept {
    std::swap(comm_, other.comm_);
    std::swap(compute_, other.compute_);
    std::swap(comm_sms_, other.comm_sms_);
    std::swap(compute_sms_, other.compute_sms_);
  }

  CUgreenCtx comm_ = nullptr, compute_ = nullptr;
  int comm_sms_ = 0, compute_sms_ = 0;
};

}  // namespace dbo::runtime
