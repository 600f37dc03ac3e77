#include "tests/kernels/a2a_reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

namespace dbo::a2a_test {

using kernels::A2aLayout;
using kernels::Area;
using kernels::ElementType;
using kernels::kScaleBlock;
using kernels::MoeDims;

namespace {

/// splitmix64: the same numbers everywhere.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  int below(int n) { return static_cast<int>(next() % static_cast<std::uint64_t>(n)); }

 private:
  std::uint64_t state_;
};

std::size_t at(int i) {
  return static_cast<std::size_t>(i);
}

}  // namespace

std::uint16_t to_bf16(float x) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &x, sizeof bits);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float from_bf16(std::uint16_t x) {
  const std::uint32_t bits = std::uint32_t{x} << 16;
  float f = 0;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}

MoeDims dims_of(const Case& c, int player) {
  MoeDims dims = c.shape.dims;
  if (!c.mirrored) dims.rank = player;
  return dims;
}

int sender_of(const Case& c, int player, int source) {
  if (!c.mirrored) return source;
  return source == c.shape.dims.rank ? player : (player + 1) % players(c);
}

int addressed_rank(const Case& c, int player, int source) {
  return c.mirrored ? source : player;
}

TokenData make_tokens(const Case& c, int player, std::uint64_t salt) {
  const MoeDims& dims = c.shape.dims;
  const int experts = dims.ranks * dims.experts_per_rank;
  Random random(c.seed * 1000003 + salt * 977 + static_cast<std::uint64_t>(player));
  TokenData data;
  data.tokens = c.tokens[at(player)];
  // Weights 1 or 2 and gains up to 7: no sum of integers exceeds 256, up to which bf16 holds all of them.
  const int largest = 256 / (2 * 7 * dims.top_k);
  for (int token = 0; token < data.tokens; ++token) {
    for (int i = 0; i < dims.hidden; ++i) {
      const float value = c.values == Values::Integers ? static_cast<float>(random.below(2 * largest + 1) - largest)
                                                       : static_cast<float>(random.below(1 << 16)) / 8192.0f - 4.0f;
      data.rows.push_back(to_bf16(value));
    }
    std::vector<int> chosen(at(dims.top_k), -1);
    std::vector<int> all(at(experts));
    std::iota(all.begin(), all.end(), 0);
    if (c.routing == Routing::OneRank) {
      all.resize(at(dims.experts_per_rank));
      for (int& e : all) e += dims.ranks > 1 ? dims.experts_per_rank : 0;
    }
    for (int k = 0; k < dims.top_k && k < static_cast<int>(all.size()); ++k) {
      std::swap(all[at(k)], all[at(k + random.below(static_cast<int>(all.size()) - k))]);
      const bool hole = c.routing == Routing::Holes && (random.below(3) == 0 || token % 7 == 3);
      chosen[at(k)] = hole ? -1 : all[at(k)];
      if (c.routing == Routing::Dense) chosen[at(k)] = (token + k) % experts;
      if (c.routing == Routing::OneExpert) chosen[at(k)] = k == 0 ? experts - 1 : -1;
    }
    for (int e : chosen) {
      data.expert.push_back(e);
      data.weight.push_back(c.values == Values::Integers ? static_cast<float>(1 + random.below(2))
                                                         : static_cast<float>(1 + random.below(1000)) / 1000.0f);
    }
  }
  return data;
}

std::vector<int> tokens_to(const MoeDims& dims, const TokenData& data, int rank) {
  std::vector<int> tokens;
  for (int token = 0; token < data.tokens; ++token) {
    for (int k = 0; k < dims.top_k; ++k) {
      const int e = data.expert[at(token * dims.top_k + k)];
      if (e >= 0 && e / dims.experts_per_rank == rank) {
        tokens.push_back(token);
        break;
      }
    }
  }
  return tokens;
}

std::vector<std::vector<std::int32_t>> send_rows(const Case& c, const std::vector<TokenData>& data) {
  std::vector<std::vector<std::int32_t>> rows;
  for (const TokenData& d : data) {
    std::vector<std::int32_t>& mine = rows.emplace_back();
    for (int rank = 0; rank < c.shape.dims.ranks; ++rank) {
      mine.push_back(static_cast<std::int32_t>(tokens_to(c.shape.dims, d, rank).size()));
    }
  }
  return rows;
}

WireRow wire_row(const A2aLayout& layout, const TokenData& data, int token) {
  const int hidden = layout.dims.hidden;
  const std::uint16_t* const row = data.rows.data() + at(token) * at(hidden);
  WireRow wire;
  wire.payload.resize(layout.row_bytes);
  if (layout.payload == ElementType::Bf16) {
    std::memcpy(wire.payload.data(), row, layout.row_bytes);
    return wire;
  }
  for (int block = 0; block < hidden / kScaleBlock; ++block) {
    float amax = kernels::kMinAmax;
    for (int i = 0; i < kScaleBlock; ++i) amax = std::fmax(amax, std::fabs(from_bf16(row[block * kScaleBlock + i])));
    const float factor = kernels::kFp8Max / amax;
    for (int i = 0; i < kScaleBlock; ++i) {
      wire.payload[at(block * kScaleBlock + i)] = std::byte{to_e4m3(from_bf16(row[block * kScaleBlock + i]) * factor)};
    }
    wire.scales.push_back(amax / kernels::kFp8Max);
  }
  return wire;
}

std::vector<float> decoded_row(const A2aLayout& layout, const WireRow& row) {
  std::vector<float> values;
  for (int i = 0; i < layout.dims.hidden; ++i) {
    if (layout.payload == ElementType::Bf16) {
      std::uint16_t bits = 0;
      std::memcpy(&bits, row.payload.data() + at(i) * 2, sizeof bits);
      values.push_back(from_bf16(bits));
    } else {
      values.push_back(from_e4m3(static_cast<std::uint8_t>(row.payload[at(i)])) * row.scales[at(i / kScaleBlock)]);
    }
  }
  return values;
}

float expert_gain(int player, int local_expert) {
  return static_cast<float>(1 + (local_expert + 5 * player) % 7);
}

namespace {

/// A filled row of a view, and what it carries.
struct FilledRow {
  std::size_t row;
  int sender, token, rank;  ///< the rank it was addressed to
  int k;                    ///< expert-major: the choice it serves; else -1
};

/// Filled rows of the player's view, in order, with the count of each cell.
struct Filled {
  std::vector<FilledRow> rows;
  std::vector<std::int32_t> counts;
};

Filled filled_rows(const Case& c, int player, const std::vector<TokenData>& data) {
  const MoeDims dims = dims_of(c, player);
  Filled filled;
  const bool low_latency = c.shape.transport == Transport::LsaLl;
  const int experts = low_latency ? dims.experts_per_rank : 1;
  for (int expert = 0; expert < experts; ++expert) {
    for (int source = 0; source < dims.ranks; ++source) {
      const int cell = expert * dims.ranks + source;
      const int sender = sender_of(c, player, source), rank = addressed_rank(c, player, source);
      std::int32_t count = 0;
      for (int token : tokens_to(dims, data[at(sender)], rank)) {
        const std::size_t row = at(cell) * at(dims.max_tokens) + at(count);
        if (!low_latency) {
          filled.rows.push_back({row, sender, token, rank, -1});
          ++count;
          continue;
        }
        for (int k = 0; k < dims.top_k; ++k) {
          if (data[at(sender)].expert[at(token * dims.top_k + k)] != rank * dims.experts_per_rank + expert) continue;
          filled.rows.push_back({row, sender, token, rank, k});
          ++count;
        }
      }
      filled.counts.push_back(count);
    }
  }
  return filled;
}

/// Reads and ticks off parts of a buffer; the rest must be poison.
class Image {
 public:
  Image(const A2aLayout& layout, const std::vector<std::byte>& buffer, int slot)
      : layout_(layout), buffer_(buffer), base_(kernels::slot_offset(layout, slot)) {}

  /// Compares `bytes` at `offset` of the area with `expected`.
  void expect(const char* name, const Area& area, std::size_t offset, const void* expected, std::size_t bytes,
              const std::string& what) {
    if (!fault_.empty() || bytes == 0) return;
    const std::size_t first = base_ + area.offset + offset;
    if (offset + bytes > area.bytes) {
      fault_ = std::string(name) + ": " + what + " lies outside the area";
      return;
    }
    seen_.emplace_back(first, first + bytes);
    if (std::memcmp(buffer_.data() + first, expected, bytes) == 0) return;
    const auto* const want = static_cast<const std::byte*>(expected);
    std::size_t i = 0;
    while (buffer_[first + i] == want[i]) ++i;
    fault_ = std::string(name) + ": " + what + ": byte " + std::to_string(i) + " is " +
             std::to_string(std::to_integer<int>(buffer_[first + i])) + ", expected " +
             std::to_string(std::to_integer<int>(want[i]));
  }
  /// Leaves an area out of the poison check.
  void skip(const Area& area) { seen_.emplace_back(base_ + area.offset, base_ + area.offset + area.bytes); }

  std::string finish() {
    if (!fault_.empty()) return fault_;
    std::sort(seen_.begin(), seen_.end());
    seen_.emplace_back(buffer_.size(), buffer_.size());
    std::size_t next = layout_.control_bytes;
    for (const auto& [begin, end] : seen_) {
      if (begin > next && !is_poison(next, begin)) {
        while (buffer_[next] == kPoison) ++next;
        return "byte " + std::to_string(next) + " of the buffer (" + where(next) + ") was written";
      }
      next = std::max(next, end);
    }
    return {};
  }

 private:
  bool is_poison(std::size_t begin, std::size_t end) const {
    // All bytes equal their neighbours, and the first is poison: as fast as memory.
    const std::byte* const p = buffer_.data();
    return p[begin] == kPoison && std::memcmp(p + begin, p + begin + 1, end - begin - 1) == 0;
  }
  std::string where(std::size_t byte) const {
    const int slot = static_cast<int>((byte - layout_.control_bytes) / layout_.slot_stride);
    const std::size_t offset = byte - kernels::slot_offset(layout_, slot);
    std::string place = "slot " + std::to_string(slot);
    for (const kernels::NamedArea& named : kernels::slot_areas(layout_)) {
      if (offset < named.area.offset) continue;
      const std::size_t in = offset - named.area.offset;
      const std::string name(named.name);
      place = "slot " + std::to_string(slot) +
              (in < named.area.bytes ? ", " + name + " + " + std::to_string(in) : ", guard behind " + name);
    }
    return place;
  }

  const A2aLayout& layout_;
  const std::vector<std::byte>& buffer_;
  std::size_t base_;
  std::vector<std::pair<std::size_t, std::size_t>> seen_;  ///< begin and end of what was looked at
  std::string fault_;
};

std::string describe(const FilledRow& r) {
  return "row " + std::to_string(r.row) + " (token " + std::to_string(r.token) + " of player " +
         std::to_string(r.sender) + " for rank " + std::to_string(r.rank) +
         (r.k >= 0 ? ", choice " + std::to_string(r.k) : "") + ")";
}

}  // namespace

std::string check_dispatch(const Case& c, const A2aLayout& layout, const std::vector<std::byte>& buffer, int player,
                           int slot, const std::vector<TokenData>& data, bool untouched_tail) {
  const MoeDims dims = dims_of(c, player);
  Image image(layout, buffer, slot);
  const Filled filled = filled_rows(c, player, data);
  image.expect("count", layout.count, 0, filled.counts.data(), filled.counts.size() * 4, "the counts");
  for (const FilledRow& r : filled.rows) {
    const TokenData& from = data[at(r.sender)];
    const WireRow wire = wire_row(layout, from, r.token);
    const std::string what = describe(r);
    image.expect("rows", layout.rows, r.row * layout.row_bytes, wire.payload.data(), layout.row_bytes, what);
    image.expect("scales", layout.scales, r.row * wire.scales.size() * 4, wire.scales.data(), wire.scales.size() * 4,
                 what);
    image.expect("source_token", layout.source_token, r.row * 4, &r.token, 4, what);
    if (r.k >= 0) {
      image.expect("source_k", layout.source_k, r.row * 4, &r.k, 4, what);
      continue;
    }
    for (int k = 0; k < dims.top_k; ++k) {
      const std::int32_t e = from.expert[at(r.token * dims.top_k + k)];
      const bool here = e >= 0 && e / dims.experts_per_rank == r.rank;
      const std::int32_t local = here ? e - r.rank * dims.experts_per_rank : -1;
      const float weight = here ? from.weight[at(r.token * dims.top_k + k)] : 0.0f;
      const std::size_t cell = r.row * at(dims.top_k) + at(k);
      image.expect("expert", layout.expert, cell * 4, &local, 4, what);
      image.expect("weight", layout.weight, cell * 4, &weight, 4, what);
    }
  }
  if (!untouched_tail) image.skip(layout.rows);
  // What a transport keeps for itself.
  for (const Area& area : {layout.route, layout.stage_rows, layout.stage_meta, layout.recv_meta}) image.skip(area);
  return image.finish();
}

namespace {

/// Output of one rank-major row: what the experts of `rank` (played by `player`) make of a token.
std::vector<std::uint16_t> rank_output(const MoeDims& dims, const TokenData& data, int token, int rank, int player,
                                       const std::vector<float>& x) {
  std::vector<float> sum(x.size(), 0.0f);
  for (int k = 0; k < dims.top_k; ++k) {
    const int e = data.expert[at(token * dims.top_k + k)];
    if (e < 0 || e / dims.experts_per_rank != rank) continue;
    const float gain = expert_gain(player, e - rank * dims.experts_per_rank),
                w = data.weight[at(token * dims.top_k + k)];
    for (std::size_t i = 0; i < x.size(); ++i) sum[i] = std::fma(w, gain * x[i], sum[i]);
  }
  std::vector<std::uint16_t> out;
  out.reserve(x.size());
  for (float value : sum) out.push_back(to_bf16(value));
  return out;
}

std::vector<std::uint16_t> expert_output(int player, int local_expert, const std::vector<float>& x) {
  std::vector<std::uint16_t> out;
  for (float value : x) out.push_back(to_bf16(expert_gain(player, local_expert) * value));
  return out;
}

/// Who computes for `rank` in an exchange that `player` takes part in.
int server_of(const Case& c, int player, int rank) {
  if (!c.mirrored) return rank;
  return rank == c.shape.dims.rank ? player : (player + 1) % players(c);
}

}  // namespace

void write_outputs(const Case& c, const A2aLayout& layout, std::vector<std::byte>& buffer, int player, int slot,
                   const std::vector<TokenData>& data) {
  const MoeDims dims = dims_of(c, player);
  const std::size_t row_bytes = at(dims.hidden) * 2;
  for (const FilledRow& r : filled_rows(c, player, data).rows) {
    const TokenData& from = data[at(r.sender)];
    const std::vector<float> x = decoded_row(layout, wire_row(layout, from, r.token));
    std::vector<std::uint16_t> out;
    if (r.k >= 0) {
      const int e = from.expert[at(r.token * dims.top_k + r.k)];
      out = expert_output(player, e - r.rank * dims.experts_per_rank, x);
    } else {
      out = rank_output(dims, from, r.token, r.rank, player, x);
    }
    std::memcpy(buffer.data() + kernels::slot_offset(layout, slot) + layout.outputs.offset + r.row * row_bytes,
                out.data(), row_bytes);
  }
}

std::vector<std::uint16_t> expected_combine(const Case& c, const A2aLayout& layout, int player,
                                            const std::vector<TokenData>& data) {
  const MoeDims dims = dims_of(c, player);
  const TokenData& mine = data[at(player)];
  std::vector<std::uint16_t> result;
  for (int token = 0; token < mine.tokens; ++token) {
    const std::vector<float> x = decoded_row(layout, wire_row(layout, mine, token));
    std::vector<float> sum(at(dims.hidden), 0.0f);
    if (c.shape.transport == Transport::LsaLl) {
      for (int k = 0; k < dims.top_k; ++k) {
        const int e = mine.expert[at(token * dims.top_k + k)];
        if (e < 0) continue;
        const int rank = e / dims.experts_per_rank;
        const auto y = expert_output(server_of(c, player, rank), e - rank * dims.experts_per_rank, x);
        const float w = mine.weight[at(token * dims.top_k + k)];
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = std::fma(w, from_bf16(y[i]), sum[i]);
      }
    } else {
      for (int rank = 0; rank < dims.ranks; ++rank) {
        bool goes = false;
        for (int k = 0; k < dims.top_k; ++k) {
          const int e = mine.expert[at(token * dims.top_k + k)];
          goes = goes || (e >= 0 && e / dims.experts_per_rank == rank);
        }
        if (!goes) continue;
        const auto y = rank_output(dims, mine, token, rank, server_of(c, player, rank), x);
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += from_bf16(y[i]);
      }
    }
    for (float value : sum) result.push_back(to_bf16(value));
  }
  return result;
}

std::vector<double> exact_combine(const Case& c, const A2aLayout& layout, int player,
                                  const std::vector<TokenData>& data) {
  const MoeDims dims = dims_of(c, player);
  const TokenData& mine = data[at(player)];
  std::vector<double> result;
  for (int token = 0; token < mine.tokens; ++token) {
    const std::vector<float> x = decoded_row(layout, wire_row(layout, mine, token));
    double factor = 0;
    for (int k = 0; k < dims.top_k; ++k) {
      const int e = mine.expert[at(token * dims.top_k + k)];
      if (e < 0) continue;
      const int rank = e / dims.experts_per_rank;
      factor += double{mine.weight[at(token * dims.top_k + k)]} *
                double{expert_gain(server_of(c, player, rank), e - rank * dims.experts_per_rank)};
    }
    for (float value : x) result.push_back(factor * double{value});
  }
  return result;
}

}  // namespace dbo::a2a_test
