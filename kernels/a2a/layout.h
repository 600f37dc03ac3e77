// Where everything of an all-to-all lies in a rank's symmetric buffer: every rank allocates `total_bytes` laid out the
// same way, so that a peer's base pointer plus an offset from here addresses a peer's memory. Plain C++: no CUDA types.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "kernels/moe_buffers.h"
#include "sim/base/transport.h"

namespace dbo::kernels {

inline constexpr int kA2aMaxTopK = 11;
inline constexpr int kA2aMaxRanks = 4096;            // a route entry has 12 bits for the rank ...
inline constexpr int kA2aMaxTokens = (1 << 20) - 1;  // ... and 20 for the slot
inline constexpr int kA2aMaxExperts = 8192;          // `lsa-ll` keeps one count per expert in shared memory

/// What fixes a layout. The same on every rank but for `dims.rank`.
struct A2aShape {
  MoeDims dims;
  ElementType payload = ElementType::Bf16;  ///< of dispatched rows; expert outputs are always bf16
  Transport transport = Transport::LsaHt;   ///< LsaHt, LsaLl, CopyEngine or Nccl
  int slots = 2;                            ///< calls whose buffers are live at once
};

/// A stretch of a slot: offset from the slot's first byte. 0 bytes: this transport has none.
struct Area {
  std::size_t offset = 0, bytes = 0;
};

/// Words a rank keeps for itself per slot; kernels advance them on the device, so that graph replays go on correctly.
struct A2aState {
  std::uint32_t epoch;            ///< dispatches that ended on this slot (lsa-ll: their receives)
  std::uint32_t dispatch_blocks;  ///< blocks of the running dispatch kernel that are done (wraps to 0)
  std::uint32_t combine_blocks;   ///< likewise for combine
  std::uint32_t unused;
};

/// Offsets of a metadata message of the `nccl` transport: the arrays of one (source, destination) pair.
struct MetaBlob {
  std::size_t count = 0, source_token = 0, expert = 0, weight = 0, scales = 0, bytes = 0;
};

struct A2aLayout {
  MoeDims dims;
  ElementType payload = ElementType::Bf16;
  Transport transport = Transport::LsaHt;
  int slots = 0;

  // The control part comes first and must be all zero before the first call (and again after a failed step, on every
  // rank, with no call in flight). Slot s's begins at s * control_stride; the following are offsets in it.
  std::size_t control_stride = 0;
  std::size_t state = 0;           ///< A2aState
  std::size_t dispatch_flag = 0;   ///< [ranks] uint32: dispatches of that source that have arrived, in kArrivalUnits;
                                   ///< copy-engine: its epoch, or 1 between the arrival and the wait of its streams
  std::size_t combine_flag = 0;    ///< [ranks] uint32
  std::size_t dispatch_stamp = 0;  ///< [ranks] uint64: the source's %globaltimer when the latest was sent
  std::size_t combine_stamp = 0;   ///< [ranks] uint64
  std::size_t clock_box = 0;       ///< offset from the buffer's base: [ranks] of 4 uint64, for clock probes and gates
  std::size_t control_bytes = 0;   ///< of all slots and the clock boxes

  // Slot s's data begins at control_bytes + s * slot_stride. Areas, all aligned to 256 bytes, with a guard gap behind.
  std::size_t slot_stride = 0;
  std::size_t row_bytes = 0;                                         ///< of one dispatched row
  Area rows, scales, expert, weight, source_token, source_k, count;  // the RankMajorView or ExpertMajorView
  Area outputs;       ///< expert outputs, as moe_buffers.h lays them out: what combine sends
  Area combine_rows;  ///< received outputs: lsa-ll [max_tokens][top_k][hidden]; copy-engine, nccl
                      ///< [ranks][max_tokens][hidden]
  Area route;       ///< rank-major: [max_tokens][top_k] route entries, ascending rank, written by dispatch for combine
  Area stage_rows;  ///< copy-engine, nccl: [ranks][max_tokens][hidden] rows to send
  Area stage_meta, recv_meta;  ///< nccl: [ranks] MetaBlob
  MetaBlob blob;
  std::size_t total_bytes = 0;
};

inline constexpr std::size_t kAreaAlign = 256;
/// Nobody writes these bytes behind each area; tests poison and check them.
inline constexpr std::size_t kAreaGuardBytes = 256;

/// Throws InputError for dims out of range or a simulated-only transport.
A2aLayout make_a2a_layout(const A2aShape& shape);

struct NamedArea {
  std::string_view name;
  Area area;
};
/// The areas of a slot that exist, in order of offset.
std::vector<NamedArea> slot_areas(const A2aLayout& layout);

inline std::size_t slot_offset(const A2aLayout& layout, int slot) {
  return layout.control_bytes + static_cast<std::size_t>(slot) * layout.slot_stride;
}

/// Pointers into the buffer at `base`. rank_major_view: LsaHt, CopyEngine, Nccl. expert_major_view: LsaLl.
RankMajorView rank_major_view(const A2aLayout& layout, std::byte* base, int slot);
ExpertMajorView expert_major_view(const A2aLayout& layout, std::byte* base, int slot);
/// Where the expert kernels put what combine takes back (moe_buffers.h).
void* expert_outputs(const A2aLayout& layout, std::byte* base, int slot);

/// Bytes that leave a rank for each dispatched row (payload and scales) and each combined row.
std::size_t dispatch_row_bytes(const A2aLayout& layout);
std::size_t combine_row_bytes(const A2aLayout& layout);

}  // namespace dbo::kernels
