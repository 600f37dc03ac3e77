#include <algorithm>
#include <array>

#include "kernels/compute/layer.h"
#include "kernels/compute/permute.h"
#include "tests/kernels/cuda/compute_support.h"

using namespace dbo::kernels;
using namespace dbo::compute_test;

namespace {

/// A rank-major view made by rule: which source sends how many tokens, and who they choose.
struct Received {
  MoeDims dims;
  std::vector<std::int32_t> count, expert;
  std::vector<float> weight;

  Received(int ranks, int experts, int top_k, int hidden, int max_tokens, std::uint64_t seed) {
    dims.ranks = ranks;
    dims.experts_per_rank = experts;
    dims.top_k = top_k;
    dims.hidden = hidden;
    dims.max_tokens = max_tokens;
    for (int r = 0; r < ranks; ++r) count.push_back(pick(seed, static_cast<std::uint64_t>(r), max_tokens + 1));
    count[0] = 0;
    if (ranks > 1) count[1] = max_tokens;
    const auto slots = static_cast<std::size_t>(ranks * max_tokens);
    expert.assign(slots * static_cast<std::size_t>(top_k), 12345);  // unfilled slots hold rubbish
    weight.assign(slots * static_cast<std::size_t>(top_k), 1e30f);
    for (int r = 0; r < ranks; ++r) {
      for (int s = 0; s < count[static_cast<std::size_t>(r)]; ++s) {
        const std::size_t row = static_cast<std::size_t>(r * max_tokens + s);
        std::vector<int> order(static_cast<std::size_t>(experts * 2));  // half of all experts are elsewhere
        for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
        for (int k = 0; k < top_k; ++k) {
          const int j = k + pick(seed + row, static_cast<std::uint64_t>(k), static_cast<int>(order.size()) - k);
          std::swap(order[static_cast<std::size_t>(k)], order[static_cast<std::size_t>(j)]);
          const int e = order[static_cast<std::size_t>(k)];
          const std::size_t at = row * static_cast<std::size_t>(top_k) + static_cast<std::size_t>(k);
          // Expert 1 gets nobody.
          expert[at] = e >= experts || e == 1 ? -1 : e;
          weight[at] = 0.25f * static_cast<float>(1 + pick(seed + 99, at, 8));
        }
      }
    }
  }

  std::vector<std::int32_t> offset, rows, position;
  void sort() {
    position.assign(expert.size(), -7);
    const auto top_k = static_cast<std::size_t>(dims.top_k);
    for (int e = 0; e < dims.experts_per_rank; ++e) {
      offset.push_back(static_cast<std::int32_t>(rows.size()));
      for (int r = 0; r < dims.ranks; ++r) {
        for (int s = 0; s < count[static_cast<std::size_t>(r)]; ++s) {
          const int row = r * dims.max_tokens + s;
          for (std::size_t k = 0; k < top_k; ++k) {
            const std::size_t at = static_cast<std::size_t>(row) * top_k + k;
            if (expert[at] < 0) position[at] = -1;
            if (expert[at] != e) continue;
            position[at] = static_cast<std::int32_t>(rows.size());
            rows.push_back(row);
          }
        }
      }
    }
    offset.push_back(static_cast<std::int32_t>(rows.size()));
  }
};

}  // namespace

TEST_CASE(
    "permute: rank-major rows are sorted by expert in the order of rows, gathered, and summed back in the order of k") {
  const TestStream stream;
  const std::array<std::array<int, 5>, 6> shapes = {{
      // ranks, experts, top_k, hidden, max_tokens
      {1, 4, 2, 128, 1},
      {2, 8, 8, 256, 40},
      {5, 3, 3, 384, 1000},
      {16, 16, 6, 128, 128},
      {3, 64, 11, 2176, 33},
      {8, kMaxLocalExperts, 8, 128, 2048},  // several steps of every warp of the index
  }};
  for (std::size_t c = 0; c < shapes.size(); ++c) {
    const auto [ranks, experts, top_k, hidden, max_tokens] = shapes[c];
    Received in(ranks, experts, top_k, hidden, max_tokens, 1000 + c);
    in.sort();
    const auto total = static_cast<std::size_t>(in.rows.size());
    const auto slots = static_cast<std::size_t>(ranks * max_tokens), width = static_cast<std::size_t>(hidden);
    const std::vector<Bf16> rows_host = random_integers(slots * width, 5 + c, 8);
    const Device<Bf16> rows(rows_host);
    const Device<std::int32_t> expert(in.expert), count(in.count);
    const Device<float> weight(in.weight);
    const Device<std::int32_t> offset(static_cast<std::size_t>(experts) + 1), row(total + 64),
        position(in.expert.size()), block_count(static_cast<std::size_t>(kIndexBlocks * experts));
    const Device<Bf16> sorted(std::max<std::size_t>(total, 1) * width), out(slots * width);
    IndexArgs index;
    index.dims = in.dims;
    index.expert = expert.get();
    index.count = count.get();
    index.index = {offset.get(), row.get(), position.get()};
    index.max_rows = static_cast<int>(total) + 64;
    index.block_count = block_count.get();
    const Device<std::int32_t> ticket(std::size_t{kTickets});
    index.ticket = ticket.get();
    DBO_TEST_CUDA(launch_rank_major_index(index, stream.get()));
    GatherRowsArgs gather;
    gather.rows = rows.get();
    gather.index = index.index;
    gather.experts = experts;
    gather.hidden = hidden;
    gather.out = sorted.get();
    gather.blocks = 50;
    DBO_TEST_CUDA(launch_gather_rows(gather, stream.get()));
    ReduceRowsArgs reduce;
    reduce.dims = in.dims;
    reduce.count = count.get();
    reduce.weight = weight.get();
    reduce.index = index.index;
    reduce.sorted = sorted.get();
    reduce.out = out.get();
    reduce.blocks = 70;
    DBO_TEST_CUDA(launch_reduce_rows(reduce, stream.get()));
    stream.wait();

    CHECK(offset.read() == in.offset);
    CHECK(ticket.read() == std::vector<std::int32_t>(kTickets, 0));
    std::vector<std::int32_t> got_rows = row.read();
    got_rows.resize(total);
    CHECK(got_rows == in.rows);
    const std::vector<std::int32_t> got_position = position.read();
    int wrong = 0;
    for (std::size_t i = 0; i < got_position.size(); ++i) {
      wrong += got_position[i] != (in.position[i] == -7 ? -1 : in.position[i]);  // 0xffffffff where nothing is written
    }
    CHECK_MESSAGE(wrong == 0, wrong << " positions wrong in case " << c);

    // Sums of integers times quarters are exact in fp32.
    std::vector<double> want(slots * width);
    std::vector<Bf16> got = out.read();
    for (std::size_t r = 0; r < slots; ++r) {
      const bool filled = static_cast<int>(r) % max_tokens < in.count[r / static_cast<std::size_t>(max_tokens)];
      for (std::size_t d = 0; d < width; ++d) {
        if (!filled) {
          CHECK_UNARY(got[r * width + d] == 0xffff);
          got[r * width + d] = 0;
          continue;
        }
        double sum = 0;
        for (int k = 0; k < top_k; ++k) {
          const std::size_t at = r * static_cast<std::size_t>(top_k) + static_cast<std::size_t>(k);
          if (in.expert[at] >= 0) {
            sum += static_cast<double>(in.weight[at]) * static_cast<double>(to_float(rows_host[r * width + d]));
          }
        }
        want[r * width + d] = sum;
      }
    }
    check_exact("weighted sum, case " + std::to_string(c), got, want);
  }
}

TEST_CASE("permute: expert-major groups close their gaps in the order of sources") {
  const TestStream stream;
  MoeDims dims;
  dims.ranks = 5;
  dims.experts_per_rank = 7;
  dims.top_k = 4;
  dims.hidden = 128;
  dims.max_tokens = 300;
  std::vector<std::int32_t> count;
  for (int i = 0; i < 35; ++i) count.push_back(i % 6 == 0 ? 0 : pick(3, static_cast<std::uint64_t>(i), 301));
  for (int s = 0; s < 5; ++s) count[static_cast<std::size_t>(2 * 5 + s)] = 0;  // an expert without rows
  std::vector<std::int32_t> want_offset{0}, want_rows;
  for (int e = 0; e < 7; ++e) {
    for (int s = 0; s < 5; ++s) {
      for (int i = 0; i < count[static_cast<std::size_t>(e * 5 + s)]; ++i) want_rows.push_back((e * 5 + s) * 300 + i);
    }
    want_offset.push_back(static_cast<std::int32_t>(want_rows.size()));
  }
  const Device<std::int32_t> counts(count), offset(8), row(want_rows.size());
  IndexArgs index;
  index.dims = dims;
  index.count = counts.get();
  index.index = {offset.get(), row.get(), nullptr};
  index.max_rows = static_cast<int>(want_rows.size());
  DBO_TEST_CUDA(launch_expert_major_index(index, stream.get()));
  stream.wait();
  CHECK(offset.read() == want_offset);
  CHECK(row.read() == want_rows);
}

TEST_CASE("permute: fp8 rows are multiplied by their block's scale") {
  const TestStream stream;
  constexpr int kRows = 6, kHidden = 384;
  // E4M3: sign, 4 bits of exponent (bias 7), 3 of mantissa; 0x38 is 1, 0x40 is 2, 0xb8 is -1, 0x3c is 1.5, 0x01 is
  // 2^-9.
  const std::uint8_t codes[] = {0x38, 0x40, 0xb8, 0x3c, 0x01, 0x00, 0x7e, 0x30};
  const double values[] = {1, 2, -1, 1.5, 1.0 / 512, 0, 448, 0.5};
  std::vector<std::uint8_t> bytes(std::size_t{kRows} * kHidden);
  std::vector<float> scale(std::size_t{kRows} * 3);
  for (std::size_t i = 0; i < scale.size(); ++i) scale[i] = 0.5f * static_cast<float>(1 + i % 4);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = codes[static_cast<std::size_t>(pick(9, i, 8))];
  const std::vector<std::int32_t> order{4, 1, 1, 5, 0};
  std::vector<double> want;
  for (const std::int32_t r : order) {
    for (int d = 0; d < kHidden; ++d) {
      const std::size_t i = static_cast<std::size_t>(r * kHidden + d);
      want.push_back(values[pick(9, i, 8)] * static_cast<double>(scale[static_cast<std::size_t>(r * 3 + d / 128)]));
    }
  }
  const Device<std::uint8_t> rows(bytes);
  const Device<float> scales(scale);
  const Device<std::int32_t> row(order), offset(std::vector<std::int32_t>{0, 2, 5});
  const Device<Bf16> out(want.size());
  GatherRowsArgs gather;
  gather.type = ElementType::Fp8E4m3;
  gather.rows = rows.get();
  gather.scales = scales.get();
  gather.index = {offset.get(), row.get(), nullptr};
  gather.experts = 2;
  gather.hidden = kHidden;
  gather.out = out.get();
  gather.blocks = 3;
  DBO_TEST_CUDA(launch_gather_rows(gather, stream.get()));
  stream.wait();
  check_exact("fp8 rows", out.read(), want);
}
