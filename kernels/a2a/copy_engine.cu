// The copy-engine transport: everything but its kernels that move rows (scatter.cu, gather.cu).
#include <cuda.h>

#include <algorithm>
#include <array>

#include "kernels/a2a/copy_arrival.cuh"
#include "kernels/a2a/launch.cuh"

namespace dbo::kernels {

namespace {

/// What a stream memory operation writes and waits for: a fixed word, since a captured value cannot count.
constexpr std::uint32_t kArrivedWord = 1;
/// The driver takes 256 operations at once.
constexpr int kBatchSources = 128;

bool is_copy_valid(const CopyArgs& a) {
  return is_call_valid(a.call, Transport::CopyEngine) && a.peers != nullptr;
}

int source_at(const A2aCall& c, int peer) {
  return c.mirrored ? peer : c.layout.dims.rank;
}

std::byte* slot_data(const A2aCall& c, std::byte* base) {
  return base + slot_offset(c.layout, c.slot);
}

std::uint32_t* flag_of(const A2aCall& c, std::byte* base, std::size_t flags, int source) {
  return reinterpret_cast<std::uint32_t*>(base + static_cast<std::size_t>(c.slot) * c.layout.control_stride + flags) +
         source;
}

CUstreamBatchMemOpParams write_op(std::uint32_t* word, std::uint32_t value) {
  CUstreamBatchMemOpParams op{};
  op.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  op.writeValue.address = reinterpret_cast<CUdeviceptr>(word);
  op.writeValue.value = value;
  op.writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
  return op;
}

CUstreamBatchMemOpParams wait_op(std::uint32_t* word, std::uint32_t value) {
  CUstreamBatchMemOpParams op{};
  op.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  op.waitValue.address = reinterpret_cast<CUdeviceptr>(word);
  op.waitValue.value = value;
  op.waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
  return op;
}

/// The operations are done in their order.
cudaError_t enqueue(const StreamMemoryOps& ops, cudaStream_t stream, CUstreamBatchMemOpParams* batch, int number) {
  if (number == 0) return cudaSuccess;
  const auto call = reinterpret_cast<decltype(&cuStreamBatchMemOp)>(ops.batch);
  // The codes of the driver and of the runtime agree.
  return static_cast<cudaError_t>(call(stream, static_cast<unsigned>(number), batch, 0));
}

/// Copies row blocks to all peers, each followed by its arrival. `from(rank)` and `to(rank)` say where a block lies.
template <typename From, typename To>
cudaError_t copy_blocks(const CopyArgs& a, const std::int32_t* rows, std::size_t row_bytes, std::size_t flags,
                        cudaStream_t stream, const From& from, const To& to) {
  const A2aLayout& l = a.call.layout;
  auto* const epoch = reinterpret_cast<std::uint32_t*>(
      a.call.base + static_cast<std::size_t>(a.call.slot) * l.control_stride + l.state + offsetof(A2aState, epoch));
  for (int i = 1; i < l.dims.ranks; ++i) {
    // Each rank begins with its successor, so that not all of them send to rank 0 at once.
    const int rank = (l.dims.rank + i) % l.dims.ranks;
    const int number = rows == nullptr ? l.dims.max_tokens : rows[rank];
    if (number < 0 || number > l.dims.max_tokens) return cudaErrorInvalidValue;
    cudaError_t status = cudaSuccess;
    if (number > 0) {
      status = cudaMemcpyAsync(to(rank), from(rank), static_cast<std::size_t>(number) * row_bytes, cudaMemcpyDefault,
                               stream);
    }
    if (status != cudaSuccess) return status;
    std::uint32_t* const flag = flag_of(a.call, a.peers[rank], flags, source_at(a.call, rank));
    if (a.memory_ops.found()) {
      CUstreamBatchMemOpParams word = write_op(flag, kArrivedWord);
      status = enqueue(a.memory_ops, stream, &word, 1);
    } else {
      status = cudaMemcpyAsync(flag, epoch, sizeof(std::uint32_t), cudaMemcpyDefault, stream);
    }
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

/// Waits for every remote source's word and clears it. The sender cannot write it again before: its next call on the
/// slot follows something this rank sends later on the same stream (call.h).
cudaError_t wait_words(const CopyArgs& a, std::size_t flags, cudaStream_t stream) {
  const MoeDims& dims = a.call.layout.dims;
  std::array<CUstreamBatchMemOpParams, 2 * kBatchSources> batch;
  for (int begin = 0; begin < dims.ranks; begin += kBatchSources) {
    int number = 0;
    for (int source = begin; source < std::min(begin + kBatchSources, dims.ranks); ++source) {
      if (source == dims.rank) continue;
      std::uint32_t* const flag = flag_of(a.call, a.call.base, flags, source);
      batch[static_cast<std::size_t>(number++)] = wait_op(flag, kArrivedWord);
      batch[static_cast<std::size_t>(number++)] = write_op(flag, 0);
    }
    const cudaError_t status = enqueue(a.memory_ops, stream, batch.data(), number);
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

cudaError_t hold(const A2aCall& call, WaitOp op, std::size_t stamp, cudaStream_t stream) {
  if (call.wire_ns == 0) return cudaSuccess;
  return launch(device::copy_hold_kernel, 1, device::kArrivalThreads, 0, stream, call, op, stamp);
}

}  // namespace

cudaError_t find_stream_memory_ops(StreamMemoryOps* ops) {
  cudaDriverEntryPointQueryResult result{};
  void* batch = nullptr;
  const cudaError_t status =
      cudaGetDriverEntryPointByVersion("cuStreamBatchMemOp", &batch, 13000, cudaEnableDefault, &result);
  if (status != cudaSuccess) return status;
  if (result != cudaDriverEntryPointSuccess) return cudaErrorNotSupported;
  ops->batch = batch;
  return cudaSuccess;
}

cudaError_t launch_copy_advance(const A2aCall& call, cudaStream_t stream) {
  if (!is_call_valid(call, Transport::CopyEngine)) return cudaErrorInvalidValue;
  return launch(device::copy_advance_kernel, 1, device::kArrivalThreads, 0, stream, call);
}

cudaError_t launch_copy_dispatch(const CopyArgs& a, cudaStream_t stream) {
  if (!is_copy_valid(a)) return cudaErrorInvalidValue;
  const A2aCall& c = a.call;
  const std::size_t block_bytes = static_cast<std::size_t>(c.layout.dims.max_tokens) * c.layout.row_bytes;
  return copy_blocks(
      a, a.send_rows, c.layout.row_bytes, c.layout.dispatch_flag, stream,
      [&](int rank) {
        return slot_data(c, c.base) + c.layout.stage_rows.offset + static_cast<std::size_t>(rank) * block_bytes;
      },
      [&](int rank) {
        return slot_data(c, a.peers[rank]) + c.layout.rows.offset +
               static_cast<std::size_t>(source_at(c, rank)) * block_bytes;
      });
}

cudaError_t launch_copy_dispatch_receive(const CopyArgs& a, cudaStream_t stream) {
  if (!is_copy_valid(a)) return cudaErrorInvalidValue;
  const A2aLayout& l = a.call.layout;
  if (!a.memory_ops.found()) {
    return launch(device::copy_arrival_kernel, 1, device::kArrivalThreads, 0, stream, a.call);
  }
  const cudaError_t status = wait_words(a, l.dispatch_flag, stream);
  return status != cudaSuccess ? status : hold(a.call, WaitOp::CopyDispatch, l.dispatch_stamp, stream);
}

cudaError_t launch_copy_combine_stamp(const A2aCall& call, cudaStream_t stream) {
  if (!is_call_valid(call, Transport::CopyEngine)) return cudaErrorInvalidValue;
  if (call.wire_ns == 0) return cudaSuccess;
  return launch(device::copy_combine_stamp_kernel, 1, device::kArrivalThreads, 0, stream, call);
}

cudaError_t launch_copy_combine(const CopyArgs& a, cudaStream_t stream) {
  if (!is_copy_valid(a)) return cudaErrorInvalidValue;
  const A2aCall& c = a.call;
  const std::size_t row_bytes = combine_row_bytes(c.layout);
  const std::size_t block_bytes = static_cast<std::size_t>(c.layout.dims.max_tokens) * row_bytes;
  return copy_blocks(
      a, a.receive_rows, row_bytes, c.layout.combine_flag, stream,
      [&](int rank) {
        return slot_data(c, c.base) + c.layout.outputs.offset + static_cast<std::size_t>(rank) * block_bytes;
      },
      [&](int rank) {
        return slot_data(c, a.peers[rank]) + c.layout.combine_rows.offset +
               static_cast<std::size_t>(source_at(c, rank)) * block_bytes;
      });
}

cudaError_t launch_copy_combine_receive(const CombineArgs& args, const CopyArgs& a, cudaStream_t stream) {
  if (!is_copy_valid(a)) return cudaErrorInvalidValue;
  if (!a.memory_ops.found()) return detail::launch_copy_gather(args, true, stream);
  const A2aLayout& l = a.call.layout;
  cudaError_t status = wait_words(a, l.combine_flag, stream);
  if (status == cudaSuccess) status = hold(a.call, WaitOp::CopyCombine, l.combine_stamp, stream);
  return status != cudaSuccess ? status : detail::launch_copy_gather(args, false, stream);
}

namespace detail {

cudaError_t preload_copy_engine() {
  return preload(device::copy_advance_kernel, device::copy_combine_stamp_kernel, device::copy_arrival_kernel,
                 device::copy_hold_kernel);
}

}  // namespace detail

cudaError_t preload_a2a() {
  for (const auto load : {detail::preload_scatter, detail::preload_gather, detail::preload_low_latency,
                          detail::preload_copy_engine, detail::preload_nccl, detail::preload_clock_probe}) {
    if (const cudaError_t status = load(); status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

}  // namespace dbo::kernels
