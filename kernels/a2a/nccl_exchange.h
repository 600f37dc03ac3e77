// The nccl transport's message exchange and what else needs NCCL's types.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include "kernels/a2a/call.h"

namespace dbo::kernels {

/// One grouped exchange: to and from every other rank one message of rows and, for dispatch, one of metadata. Messages
/// are padded to max_tokens rows, or sized by host arrays that must agree between sender and receiver.
struct NcclArgs {
  A2aCall call;
  const std::int32_t* send_rows = nullptr;     ///< host [ranks]: rows dispatched to each rank; null: max_tokens
  const std::int32_t* receive_rows = nullptr;  ///< host [ranks]: rows that come from each rank; null: max_tokens
  ncclComm_t comm = nullptr;                   ///< its ranks are the layout's
};

/// Asynchronous and capturable. One thread that drives several ranks wraps their calls in ncclGroupStart and End.
[[nodiscard]] ncclResult_t nccl_dispatch(const NcclArgs& args, cudaStream_t stream);
/// Rows go the other way: receive_rows[r] to rank r, send_rows[r] back from it.
[[nodiscard]] ncclResult_t nccl_combine(const NcclArgs& args, cudaStream_t stream);

/// Fills the device array `table` [ranks] with the addresses at which this GPU sees the window's memory on each rank of
/// the LSA team. The communicator must support device communicators (facts in NCCL's device API: a window handle of one
/// that does not is a host pointer and must not get here).
[[nodiscard]] cudaError_t launch_window_peers(ncclWindow_t window, int ranks, std::byte** table, cudaStream_t stream);

}  // namespace dbo::kernels
