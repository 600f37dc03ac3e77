// The copy-engine transport: everything but its kernels that move rows (scatter.cu, gather.cu).
#include <cuda.h>

#include "kernels/a2a/device.cuh"
#include "kernels/a2a/launch.cuh"
#include "kernels/a2a/signal.cuh"

namespace dbo::kernels {

namespace {

/// What a stream memory operation writes and waits for: a fixed word, since a captured value cannot count.
constexpr std::uint32_t kArrivedWord = 1;

DBO_TINY_KERNEL advance_kernel(DBO_PARAM A2aCall c) {
  const std::uint64_t now = device::global_time_ns();
  for (int rank = device::thread_index(); rank < c.layout.dims.ranks && c.wire_ns > 0;
       rank += device::block_threads()) {
    device::store_release(
        device::control<std::uint64_t>(c, c.peers[rank], c.layout.dispatch_stamp) + device::source_at(c, rank), now);
  }
  if (device::thread_index() == 0) device::state(c).epoch += 1;
}

DBO_TINY_KERNEL combine_stamp_kernel(DBO_PARAM A2aCall c) {
  const std::uint64_t now = device::global_time_ns();
  for (int rank = device::thread_index(); rank < c.layout.dims.ranks; rank += device::block_threads()) {
    device::store_release(
        device::control<std::uint64_t>(c, c.peers[rank], c.layout.combine_stamp) + device::source_at(c, rank), now);
  }
}

bool is_copy_valid(const CopyArgs& a) {
  if (!is_call_valid(a.call, Transport::CopyEngine) || a.peers == nullptr) return false;
  return a.arrival == Arrival::EpochCopy || (a.memory_ops.write32 != nullptr && a.memory_ops.wait32 != nullptr);
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

cudaError_t write_word(const StreamMemoryOps& ops, cudaStream_t stream, std::uint32_t* word, std::uint32_t value) {
  const auto write = reinterpret_cast<decltype(&cuStreamWriteValue32)>(ops.write32);
  return write(stream, reinterpret_cast<CUdeviceptr>(word), value, CU_STREAM_WRITE_VALUE_DEFAULT) == CUDA_SUCCESS
             ? cudaSuccess
             : cudaErrorUnknown;
}

cudaError_t wait_word(const StreamMemoryOps& ops, cudaStream_t stream, std::uint32_t* word, std::uint32_t value) {
  const auto wait = reinterpret_cast<decltype(&cuStreamWaitValue32)>(ops.wait32);
  return wait(stream, reinterpret_cast<CUdeviceptr>(word), value, CU_STREAM_WAIT_VALUE_EQ) == CUDA_SUCCESS
             ? cudaSuccess
             : cudaErrorUnknown;
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
    status = a.arrival == Arrival::EpochCopy
                 ? cudaMemcpyAsync(flag, epoch, sizeof(std::uint32_t), cudaMemcpyDefault, stream)
                 : write_word(a.memory_ops, stream, flag, kArrivedWord);
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

/// StreamMemory: waits for every remote source's word and clears it. The sender cannot write it again before: its next
/// call on the slot follows something this rank sends later on the same stream (call.h).
cudaError_t wait_words(const CopyArgs& a, std::size_t flags, cudaStream_t stream) {
  const A2aLayout& l = a.call.layout;
  for (int source = 0; source < l.dims.ranks; ++source) {
    if (source == l.dims.rank) continue;
    std::uint32_t* const flag = flag_of(a.call, a.call.base, flags, source);
    cudaError_t status = wait_word(a.memory_ops, stream, flag, kArrivedWord);
    if (status == cudaSuccess) status = write_word(a.memory_ops, stream, flag, 0);
    if (status != cudaSuccess) return status;
  }
  return cudaSuccess;
}

}  // namespace

cudaError_t find_stream_memory_ops(StreamMemoryOps* ops) {
  cudaDriverEntryPointQueryResult result{};
  cudaError_t status =
      cudaGetDriverEntryPointByVersion("cuStreamWriteValue32", &ops->write32, 13000, cudaEnableDefault, &result);
  if (status != cudaSuccess || result != cudaDriverEntryPointSuccess)
    return status != cudaSuccess ? status : cudaErrorNotSupported;
  status = cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &ops->wait32, 13000, cudaEnableDefault, &result);
  if (status != cudaSuccess || result != cudaDriverEntryPointSuccess)
    return status != cudaSuccess ? status : cudaErrorNotSupported;
  return cudaSuccess;
}

cudaError_t launch_copy_advance(const A2aCall& call, cudaStream_t stream) {
  if (!is_call_valid(call, Transport::CopyEngine)) return cudaErrorInvalidValue;
  return launch(advance_kernel, 1, 32, 0, stream, call);
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
  if (a.arrival == Arrival::EpochCopy) return detail::launch_copy_arrival(a.call, stream);
  return a.call.wire_ns == 0 ? wait_words(a, a.call.layout.dispatch_flag, stream) : cudaErrorInvalidValue;
}

cudaError_t launch_copy_combine_stamp(const A2aCall& call, cudaStream_t stream) {
  if (!is_call_valid(call, Transport::CopyEngine)) return cudaErrorInvalidValue;
  return launch(combine_stamp_kernel, 1, 32, 0, stream, call);
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
  if (a.arrival == Arrival::EpochCopy) return detail::launch_copy_gather(args, true, stream);
  if (args.call.wire_ns != 0) return cudaErrorInvalidValue;
  const cudaError_t status = wait_words(a, a.call.layout.combine_flag, stream);
  return status != cudaSuccess ? status : detail::launch_copy_gather(args, false, stream);
}

namespace detail {

cudaError_t preload_copy_engine() {
  return preload(advance_kernel, combine_stamp_kernel);
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
