// bf16 rows to fp8 with one scale per 128 elements (kernels/moe_buffers.h has the formula), a warp at a time.
#pragma once

#include "kernels/a2a/device.cuh"

namespace dbo::kernels::device {

/// A warp quantises up to kQuantElements consecutive elements: per step 512, 16 a lane, so 8 lanes share a scale.
inline constexpr int kQuantSteps = 4;
inline constexpr int kQuantElements = kQuantSteps * 512;

/// What a lane of the warp has of the piece: per step 16 elements.
struct QuantInput {
  Vec16 low[kQuantSteps], high[kQuantSteps];
};

struct QuantPiece {
  Vec16 q[kQuantSteps];  ///< lane's elements step * 512 + lane * 16 .. + 15
  float scale;           ///< lane l < 16: the scale of block l of the piece
};

DBO_DEVICE float word_amax(std::uint32_t word) {
  return larger(absolute(low_bf16(word)), absolute(high_bf16(word)));
}

DBO_DEVICE std::uint32_t quantise_words(std::uint32_t a, std::uint32_t b, float factor) {
  return pack_e4m3(multiply(low_bf16(a), factor), multiply(high_bf16(a), factor)) |
         (pack_e4m3(multiply(low_bf16(b), factor), multiply(high_bf16(b), factor)) << 16);
}

/// `row`: the bf16 row; `first`: the piece's first element; elements at or beyond `hidden` read as 0 (and are not to
/// be stored).
DBO_DEVICE QuantInput load_quant_input(const std::byte* row, int first, int hidden) {
  QuantInput in;
  DBO_UNROLL
  for (int step = 0; step < kQuantSteps; ++step) {
    const int element = first + step * 512 + lane_index() * 16;
    in.low[step] = in.high[step] = Vec16{0, 0, 0, 0};
    if (element < hidden) {
      in.low[step] = load_stream(row + static_cast<std::size_t>(element) * 2);
      in.high[step] = load_stream(row + static_cast<std::size_t>(element) * 2 + 16);
    }
  }
  return in;
}

/// All 32 lanes take part.
DBO_DEVICE QuantPiece quantise_piece(const QuantInput& in) {
  const int lane = lane_index();
  QuantPiece piece;
  piece.scale = 0;
  DBO_UNROLL
  for (int step = 0; step < kQuantSteps; ++step) {
    const Vec16 &u = in.low[step], &v = in.high[step];
    float amax = larger(larger(larger(word_amax(u.x), word_amax(u.y)), larger(word_amax(u.z), word_amax(u.w))),
                        larger(larger(word_amax(v.x), word_amax(v.y)), larger(word_amax(v.z), word_amax(v.w))));
    for (int mask = 1; mask < 8; mask *= 2) amax = larger(amax, warp_shuffle_xor(amax, mask));
    amax = larger(amax, kMinAmax);
    const float factor = divide(kFp8Max, amax);
    piece.q[step] = Vec16{quantise_words(u.x, u.y, factor), quantise_words(u.z, u.w, factor),
                          quantise_words(v.x, v.y, factor), quantise_words(v.z, v.w, factor)};
    // Lane l keeps scale l of the piece: block l & 3 of step l >> 2.
    const float scale = warp_shuffle(divide(amax, kFp8Max), (lane & 3) * 8);
    if ((lane >> 2) == step) piece.scale = scale;
  }
  return piece;
}

/// Stores the piece into an fp8 row and its scales.
DBO_DEVICE void store_piece(const QuantPiece& piece, std::byte* row, float* scales, int first, int hidden) {
  const int lane = lane_index();
  DBO_UNROLL
  for (int step = 0; step < kQuantSteps; ++step) {
    const int element = first + step * 512 + lane * 16;
    if (element < hidden) store16(row + element, piece.q[step]);
  }
  const int block = first / kScaleBlock + lane;
  if (lane < kQuantElements / kScaleBlock && block < hidden / kScaleBlock) scales[block] = piece.scale;
}

}  // namespace dbo::kernels::device
