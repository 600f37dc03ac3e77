#include "kernels/a2a/layout.h"

#include <algorithm>
#include <string>
#include <utility>

#include "sim/base/error.h"

namespace dbo::kernels {
namespace {

void check_range(const char* name, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value >= low && value <= high) return;
  throw InputError("all-to-all: " + std::string(name) + " is " + std::to_string(value) +
                   " (allowed: " + std::to_string(low) + " to " + std::to_string(high) + ")");
}

void check_shape(const A2aShape& shape) {
  const MoeDims& d = shape.dims;
  check_range("ranks", d.ranks, 1, kA2aMaxRanks);
  check_range("rank", d.rank, 0, d.ranks - 1);
  check_range("experts_per_rank", d.experts_per_rank, 1, kA2aMaxExperts);
  check_range("experts", std::int64_t{d.experts_per_rank} * d.ranks, 1, kA2aMaxExperts);
  check_range("top_k", d.top_k, 1, kA2aMaxTopK);
  check_range("hidden", d.hidden, kScaleBlock, 1 << 20);
  if (d.hidden % kScaleBlock != 0) {
    throw InputError("all-to-all: hidden is " + std::to_string(d.hidden) + " (allowed: multiples of " +
                     std::to_string(kScaleBlock) + ")");
  }
  check_range("max_tokens", d.max_tokens, 1, kA2aMaxTokens);
  check_range("slots", shape.slots, 1, 64);
  if (transport_info(shape.transport).simulated_only) {
    throw InputError("all-to-all: transport \"" + std::string(transport_info(shape.transport).name) +
                     "\" is simulated only (allowed: lsa-ht, lsa-ll, copy-engine, nccl)");
  }
}

std::size_t aligned(std::size_t bytes, std::size_t to) {
  return (bytes + to - 1) / to * to;
}

/// Hands out aligned stretches with a guard behind each.
class Cursor {
 public:
  Area take(std::size_t bytes) {
    const Area area{at_, bytes};
    if (bytes > 0) at_ = aligned(at_ + bytes + kAreaGuardBytes, kAreaAlign);
    return area;
  }
  std::size_t at() const { return at_; }

 private:
  std::size_t at_ = 0;
};

void lay_control(A2aLayout& l) {
  const auto ranks = static_cast<std::size_t>(l.dims.ranks);
  std::size_t at = 0;
  // A line of its own for each array: flags are polled while peers write their neighbours'.
  const auto take = [&at](std::size_t bytes) { return std::exchange(at, at + aligned(bytes, 128)); };
  l.state = take(sizeof(A2aState));
  l.dispatch_flag = take(ranks * sizeof(std::uint32_t));
  l.combine_flag = take(ranks * sizeof(std::uint32_t));
  l.dispatch_stamp = take(ranks * sizeof(std::uint64_t));
  l.combine_stamp = take(ranks * sizeof(std::uint64_t));
  l.control_stride = at;
  l.clock_box = l.control_stride * static_cast<std::size_t>(l.slots);
  l.control_bytes = aligned(l.clock_box + ranks * 4 * sizeof(std::uint64_t), kAreaAlign);
}

MetaBlob blob_of(const A2aLayout& l) {
  const auto rows = static_cast<std::size_t>(l.dims.max_tokens);
  const auto top_k = static_cast<std::size_t>(l.dims.top_k);
  MetaBlob blob;
  std::size_t at = 16;
  const auto take = [&at](std::size_t bytes) { return std::exchange(at, at + aligned(bytes, 16)); };
  blob.source_token = take(rows * sizeof(std::int32_t));
  blob.expert = take(rows * top_k * sizeof(std::int32_t));
  blob.weight = take(rows * top_k * sizeof(float));
  const auto blocks = static_cast<std::size_t>(l.dims.hidden / kScaleBlock);
  blob.scales = take(l.payload == ElementType::Fp8E4m3 ? rows * blocks * sizeof(float) : 0);
  blob.bytes = aligned(at, kAreaAlign);
  return blob;
}

}  // namespace

A2aLayout make_a2a_layout(const A2aShape& shape) {
  check_shape(shape);
  A2aLayout l;
  l.dims = shape.dims;
  l.payload = shape.payload;
  l.transport = shape.transport;
  l.slots = shape.slots;
  lay_control(l);

  const bool low_latency = shape.transport == Transport::LsaLl;
  const bool staged = shape.transport == Transport::CopyEngine || shape.transport == Transport::Nccl;
  const bool fp8 = shape.payload == ElementType::Fp8E4m3;
  const auto ranks = static_cast<std::size_t>(l.dims.ranks);
  const auto max_tokens = static_cast<std::size_t>(l.dims.max_tokens);
  const auto top_k = static_cast<std::size_t>(l.dims.top_k);
  const auto hidden = static_cast<std::size_t>(l.dims.hidden);
  const std::size_t cells = ranks * (low_latency ? static_cast<std::size_t>(l.dims.experts_per_rank) : 1);
  const std::size_t rows = cells * max_tokens;
  const std::size_t word = 4, bf16 = 2;
  l.row_bytes = hidden * (fp8 ? 1 : bf16);
  l.blob = blob_of(l);

  Cursor cursor;
  l.rows = cursor.take(rows * l.row_bytes);
  l.scales = cursor.take(fp8 ? rows * (hidden / kScaleBlock) * word : 0);
  l.expert = cursor.take(low_latency ? 0 : rows * top_k * word);
  l.weight = cursor.take(low_latency ? 0 : rows * top_k * word);
  l.source_token = cursor.take(rows * word);
  l.source_k = cursor.take(low_latency ? rows * word : 0);
  l.count = cursor.take(cells * word);
  l.outputs = cursor.take(rows * hidden * bf16);
  l.combine_rows = cursor.take(low_latency ? max_tokens * top_k * hidden * bf16 : staged ? rows * hidden * bf16 : 0);
  l.route = cursor.take(low_latency ? 0 : max_tokens * top_k * word);
  l.stage_rows = cursor.take(staged ? rows * l.row_bytes : 0);
  const bool blobs = shape.transport == Transport::Nccl;
  l.stage_meta = cursor.take(blobs ? ranks * l.blob.bytes : 0);
  l.recv_meta = cursor.take(blobs ? ranks * l.blob.bytes : 0);
  l.slot_stride = aligned(cursor.at(), 4096);
  l.total_bytes = aligned(l.control_bytes + l.slot_stride * static_cast<std::size_t>(l.slots), 4096);
  return l;
}

std::vector<NamedArea> slot_areas(const A2aLayout& l) {
  std::vector<NamedArea> areas = {{"rows", l.rows},
                                  {"scales", l.scales},
                                  {"expert", l.expert},
                                  {"weight", l.weight},
                                  {"source_token", l.source_token},
                                  {"source_k", l.source_k},
                                  {"count", l.count},
                                  {"outputs", l.outputs},
                                  {"combine_rows", l.combine_rows},
                                  {"route", l.route},
                                  {"stage_rows", l.stage_rows},
                                  {"stage_meta", l.stage_meta},
                                  {"recv_meta", l.recv_meta}};
  std::erase_if(areas, [](const NamedArea& a) { return a.area.bytes == 0; });
  return areas;
}

namespace {

template <typename T>
T* pointer(const A2aLayout& layout, std::byte* base, int slot, const Area& area) {
  if (area.bytes == 0) return nullptr;
  return reinterpret_cast<T*>(base + slot_offset(layout, slot) + area.offset);
}

}  // namespace

RankMajorView rank_major_view(const A2aLayout& layout, std::byte* base, int slot) {
  DBO_CHECK(layout.transport != Transport::LsaLl, "lsa-ll delivers expert-major rows");
  return {.rows = pointer<void>(layout, base, slot, layout.rows),
          .scales = pointer<float>(layout, base, slot, layout.scales),
          .expert = pointer<std::int32_t>(layout, base, slot, layout.expert),
          .weight = pointer<float>(layout, base, slot, layout.weight),
          .source_token = pointer<std::int32_t>(layout, base, slot, layout.source_token),
          .count = pointer<std::int32_t>(layout, base, slot, layout.count)};
}

ExpertMajorView expert_major_view(const A2aLayout& layout, std::byte* base, int slot) {
  DBO_CHECK(layout.transport == Transport::LsaLl, "only lsa-ll delivers expert-major rows");
  return {.rows = pointer<void>(layout, base, slot, layout.rows),
          .scales = pointer<float>(layout, base, slot, layout.scales),
          .source_token = pointer<std::int32_t>(layout, base, slot, layout.source_token),
          .source_k = pointer<std::int32_t>(layout, base, slot, layout.source_k),
          .count = pointer<std::int32_t>(layout, base, slot, layout.count)};
}

void* expert_outputs(const A2aLayout& layout, std::byte* base, int slot) {
  return pointer<void>(layout, base, slot, layout.outputs);
}

std::size_t dispatch_row_bytes(const A2aLayout& layout) {
  const std::size_t blocks = static_cast<std::size_t>(layout.dims.hidden / kScaleBlock);
  return layout.row_bytes + (layout.payload == ElementType::Fp8E4m3 ? blocks * sizeof(float) : 0);
}

std::size_t combine_row_bytes(const A2aLayout& layout) {
  return static_cast<std::size_t>(layout.dims.hidden) * 2;
}

}  // namespace dbo::kernels
