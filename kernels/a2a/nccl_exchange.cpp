#include "kernels/a2a/nccl_exchange.h"

namespace dbo::kernels {
namespace {

struct Message {
  const std::byte* from;
  std::byte* to;
  std::size_t send_bytes, receive_bytes;
};

std::size_t rows_of(const std::int32_t* rows, const A2aLayout& layout, int rank) {
  return static_cast<std::size_t>(rows == nullptr ? layout.dims.max_tokens : rows[rank]);
}

bool is_valid(const NcclArgs& a) {
  const A2aLayout& l = a.call.layout;
  if (l.transport != Transport::Nccl || a.call.base == nullptr || a.comm == nullptr || a.call.mirrored) return false;
  if (a.call.slot < 0 || a.call.slot >= l.slots) return false;
  for (int rank = 0; rank < l.dims.ranks; ++rank) {
    const auto most = static_cast<std::size_t>(l.dims.max_tokens);
    if (rows_of(a.send_rows, l, rank) > most || rows_of(a.receive_rows, l, rank) > most) return false;
  }
  return true;
}

ncclResult_t exchange(const NcclArgs& a, int rank, const Message& m, cudaStream_t stream) {
  ncclResult_t status = ncclSuccess;
  if (m.send_bytes > 0) status = ncclSend(m.from, m.send_bytes, ncclUint8, rank, a.comm, stream);
  if (status == ncclSuccess && m.receive_bytes > 0) {
    status = ncclRecv(m.to, m.receive_bytes, ncclUint8, rank, a.comm, stream);
  }
  return status;
}

/// Ends the group whatever happened inside; the first error wins.
ncclResult_t close_group(ncclResult_t status) {
  const ncclResult_t ended = ncclGroupEnd();
  return status != ncclSuccess ? status : ended;
}

}  // namespace

ncclResult_t nccl_dispatch(const NcclArgs& a, cudaStream_t stream) {
  if (!is_valid(a)) return ncclInvalidArgument;
  const A2aLayout& l = a.call.layout;
  std::byte* const data = a.call.base + slot_offset(l, a.call.slot);
  const std::size_t block_bytes = static_cast<std::size_t>(l.dims.max_tokens) * l.row_bytes;
  ncclResult_t status = ncclGroupStart();
  if (status != ncclSuccess) return status;
  for (int i = 1; i < l.dims.ranks && status == ncclSuccess; ++i) {
    const int rank = (l.dims.rank + i) % l.dims.ranks;
    const auto index = static_cast<std::size_t>(rank);
    status = exchange(a, rank,
                      {data + l.stage_rows.offset + index * block_bytes, data + l.rows.offset + index * block_bytes,
                       rows_of(a.send_rows, l, rank) * l.row_bytes, rows_of(a.receive_rows, l, rank) * l.row_bytes},
                      stream);
    if (status != ncclSuccess) break;
    status = exchange(a, rank,
                      {data + l.stage_meta.offset + index * l.blob.bytes,
                       data + l.recv_meta.offset + index * l.blob.bytes, l.blob.bytes, l.blob.bytes},
                      stream);
  }
  return close_group(status);
}

ncclResult_t nccl_combine(const NcclArgs& a, cudaStream_t stream) {
  if (!is_valid(a)) return ncclInvalidArgument;
  const A2aLayout& l = a.call.layout;
  std::byte* const data = a.call.base + slot_offset(l, a.call.slot);
  const std::size_t row_bytes = combine_row_bytes(l);
  const std::size_t block_bytes = static_cast<std::size_t>(l.dims.max_tokens) * row_bytes;
  ncclResult_t status = ncclGroupStart();
  if (status != ncclSuccess) return status;
  for (int i = 1; i < l.dims.ranks && status == ncclSuccess; ++i) {
    const int rank = (l.dims.rank + i) % l.dims.ranks;
    const auto index = static_cast<std::size_t>(rank);
    status =
        exchange(a, rank,
                 {data + l.outputs.offset + index * block_bytes, data + l.combine_rows.offset + index * block_bytes,
                  rows_of(a.receive_rows, l, rank) * row_bytes, rows_of(a.send_rows, l, rank) * row_bytes},
                 stream);
  }
  return close_group(status);
}

}  // namespace dbo::kernels
