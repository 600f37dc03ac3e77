#include "runtime/cuda/moe_memory.h"

#include <algorithm>
#include <string_view>

#include "kernels/compute/hash.h"
#include "kernels/compute/pointwise.h"
#include "runtime/cuda/check.h"
#include "sim/base/error.h"

namespace dbo::runtime {
namespace {

std::size_t z(std::int64_t n) {
  return static_cast<std::size_t>(n);
}

/// Device copies of host arrays, one behind the other in one buffer.
class ArrayPacker {
 public:
  std::size_t add(const std::vector<std::int32_t>& values) {
    const std::size_t offset = data_.size();
    data_.insert(data_.end(), values.begin(), values.end());
    data_.resize((data_.size() + 63) / 64 * 64, 0);
    return offset;
  }
  DeviceBuffer upload() const {
    DeviceBuffer buffer(std::max<std::size_t>(data_.size(), 1) * sizeof(std::int32_t));
    DBO_CUDA_CHECK(cudaMemcpy(buffer.get(), data_.data(), data_.size() * sizeof(std::int32_t), cudaMemcpyHostToDevice));
    return buffer;
  }

 private:
  std::vector<std::int32_t> data_;
};

const Load& load_of(const Plan& plan, int rank) {
  return plan.loads[static_cast<std::size_t>(plan.classes[static_cast<std::size_t>(plan.class_of(rank))].load)];
}

int count_moe_layers(const ModelShape& shape) {
  int count = 0;
  for (int layer = 0; layer < shape.layers; ++layer) count += shape.is_moe_layer(layer) ? 1 : 0;
  return count;
}

/// Position of a layer among those of its kind.
int ordinal(const ModelShape& shape, int layer) {
  int count = 0;
  for (int l = 0; l < layer; ++l) count += shape.is_moe_layer(l) == shape.is_moe_layer(layer) ? 1 : 0;
  return count;
}

std::int64_t cache_row_elements(const kernels::LayerDims& dims) {
  return dims.attention.kind == AttentionKind::Mla ? 576 : std::int64_t{dims.attention.kv_heads} * 128;
}

/// The plan's experts of every row, per routing class; padding rows pick none, or (a fault) what the first token picks.
std::vector<std::int32_t> expert_rows(const MoeBatch& rows, const UbatchLoad& load, const Router& router, int rank,
                                      int layer, bool route_padding) {
  const auto top_k = static_cast<std::size_t>(router.top_k());
  const TokenRange range{load.token_begin, load.token_end};
  std::vector<int> chosen(z(range.size()) * top_k);
  router.experts_of_tokens(rank, layer, range, chosen.data());
  std::vector<std::int32_t> experts(z(rows.tokens) * top_k, -1);
  for (std::size_t row = 0; row < rows.token_of_row.size(); ++row) {
    std::int64_t token = rows.token_of_row[row];
    if (route_padding && token < 0) token = range.begin;
    if (token < range.begin || token >= range.end) continue;
    for (std::size_t k = 0; k < top_k; ++k) experts[row * top_k + k] = chosen[z(token - range.begin) * top_k + k];
  }
  return experts;
}

/// One array of a ubatch's activations: which buffer of the plan it belongs to and its bytes.
struct Field {
  void** pointer;
  std::string_view buffer;
  std::size_t bytes = 0;
};

template <typename T>
void** untyped(T*& pointer) {
  return reinterpret_cast<void**>(&pointer);
}

/// The arrays of `buffers`, as the kernels carve them one behind the other, sorted into the plan's buffers.
std::vector<Field> fields_of(const kernels::LayerDims& dims, const MoeBatch& rows, kernels::UbatchBuffers& buffers) {
  // Carved from an address that nobody reads, for the distances.
  auto* const origin = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 40);
  kernels::Carver carver(origin);
  buffers = kernels::carve_ubatch(dims, rows.tokens, rows.prefill_keys, carver);
  std::vector<Field> fields{{untyped(buffers.residual), "hidden"}, {untyped(buffers.normed), "tokens"},
                            {untyped(buffers.expert), "tokens"},   {untyped(buffers.weight), "tokens"},
                            {untyped(buffers.q), "qkv"},           {untyped(buffers.q_absorbed), "qkv"},
                            {untyped(buffers.keys), "qkv"},        {untyped(buffers.keys_up), "qkv"},
                            {untyped(buffers.shared), "shared"},   {untyped(buffers.routed), "routed"}};
  std::erase_if(fields, [](const Field& field) { return *field.pointer == nullptr; });
  std::sort(fields.begin(), fields.end(), [](const Field& a, const Field& b) { return *a.pointer < *b.pointer; });
  for (std::size_t i = 0; i < fields.size(); ++i) {
    const std::byte* end =
        i + 1 < fields.size() ? static_cast<std::byte*>(*fields[i + 1].pointer) : origin + carver.used();
    fields[i].bytes = static_cast<std::size_t>(end - static_cast<std::byte*>(*fields[i].pointer));
  }
  return fields;
}

/// Of the sets of a ring whose kind is `kind`.
std::uint64_t set_seed(std::uint64_t seed, std::uint64_t kind, int set) {
  return kernels::mix(kernels::mix(seed, kind), static_cast<std::uint64_t>(set));
}

}  // namespace

std::uint64_t moe_layer_seed(std::uint64_t seed, int set) {
  return set_seed(seed, 1, set);
}
std::uint64_t moe_cache_seed(std::uint64_t seed, int set) {
  return kernels::mix(seed + 13, static_cast<std::uint64_t>(set));
}
std::uint64_t moe_initial_seed(std::uint64_t seed) {
  return kernels::mix(seed, 11);
}

MoeMemory::MoeMemory(const Plan& plan, const Linear& linear, int plan_rank, const Router& router,
                     const kernels::MoeDims& moe, std::int64_t max_rows, const MoeMemoryOptions& options)
    : plan_(plan),
      dims_(kernels::layer_dims(plan.shape, moe.experts_per_rank)),
      max_rows_(max_rows),
      seed_(options.seed),
      least_sets_(options.least_sets),
      share_rows_(options.share_rows),
      route_padding_(options.route_padding),
      stream_(Stream::create(false)),
      dense_scratch_(kernels::kDenseScratchBytes),
      pages_(options.whole ? std::vector{*options.whole} : load_of(plan, plan_rank).ubatches) {
  if (const char* why = kernels::find_unsupported(dims_)) {
    throw InputError("the kernels cannot run " + plan.shape.name + ": " + why);
  }
  DBO_CUDA_CHECK(kernels::create_op_context(dense_scratch_.get(), context_));
  const Load& load = load_of(plan, plan_rank);
  ubatches_.resize(load.ubatches.size());
  for (std::size_t u = 0; u < ubatches_.size(); ++u) {
    make_ubatch(ubatches_[u], load.ubatches[u], plan, plan_rank, router);
  }
  make_activations(linear);
  make_scratch(moe);
  // Weights and caches last: they take what is left.
  std::size_t free_bytes = 0, total_bytes = 0;
  DBO_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
  const auto budget = static_cast<std::int64_t>(static_cast<double>(free_bytes) * options.share);
  const int moe_layers = count_moe_layers(plan.shape), dense_layers = plan.shape.layers - moe_layers;
  const int first_expert = plan_rank * moe.experts_per_rank;
  const MoeRings given = options.rings.value_or(MoeRings{});
  const auto of_kind = [&](std::uint64_t kind) { return [this, kind](int set) { return set_seed(seed_, kind, set); }; };
  make_ring(
      moe_ring_, kernels::WeightSet::MoeLayer, moe_layers, budget / 2,
      [this](int set) { return moe_layer_seed(seed_, set); }, first_expert, given.moe);
  make_ring(dense_ring_, kernels::WeightSet::DenseLayer, dense_layers, budget / 8, of_kind(2), 0, given.dense);
  if (plan.find_op("HEAD") || plan.find_op("EMB")) {
    Ring ring;
    make_ring(ring, kernels::WeightSet::Model, 1, budget / 8, of_kind(3), 0, 0);
    model_memory_ = std::move(ring.memory[0]);
    model_ = ring.sets[0];
  }
  make_caches(budget / 4, plan.shape.layers, given.caches);
  const bool mla = dims_.attention.kind == AttentionKind::Mla;
  std::int64_t positions = 1;
  for (const MoeUbatch& ubatch : ubatches_) {
    for (const std::int32_t seq : ubatch.rows.seq_lens) positions = std::max<std::int64_t>(positions, seq);
  }
  const int rope_dim = mla ? 64 : 128;
  rope_ = DeviceBuffer(z(positions * rope_dim) * sizeof(float));
  DBO_CUDA_CHECK(
      kernels::launch_rope_table({rope_.as<float>(), static_cast<int>(positions), rope_dim, 10000.0}, stream_.get()));
  DBO_CUDA_CHECK(cudaStreamSynchronize(stream_.get()));
}

MoeMemory::~MoeMemory() {
  kernels::destroy_op_context(context_);
}

void MoeMemory::fill(void* memory, std::int64_t elements, std::uint64_t seed) {
  kernels::FillArgs args;
  args.out = memory;
  args.count = elements;
  args.seed = seed;
  DBO_CUDA_CHECK(kernels::launch_fill(args, stream_.get()));
}

void MoeMemory::make_ring(Ring& ring, kernels::WeightSet set, int layers, std::int64_t budget,
                          const std::function<std::uint64_t(int)>& seed, int first_expert, int given) {
  if (layers == 0) return;
  const kernels::WeightLayout layout = kernels::weight_layout(dims_, set);
  int l2_bytes = 0, gpu = 0;
  DBO_CUDA_CHECK(cudaGetDevice(&gpu));
  DBO_CUDA_CHECK(cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, gpu));
  const auto most = static_cast<int>(std::min<std::int64_t>(layers, budget / layout.bytes));
  const int fitting = std::max(kernels::ring_sets(layers, layout.bytes, l2_bytes, budget), std::min(least_sets_, most));
  const int sets = given > 0 ? given : fitting;
  if (sets == 0) {
    throw InputError("a layer's weights take " + std::to_string(layout.bytes >> 20) + " MiB, more than the " +
                     std::to_string(budget >> 20) + " MiB there are for them");
  }
  for (int i = 0; i < sets; ++i) {
    ring.memory.emplace_back(z(layout.bytes));
    DBO_CUDA_CHECK(
        kernels::launch_fill_weights(layout, ring.memory.back().get(), seed(i), first_expert, stream_.get()));
    ring.sets.push_back(kernels::place_weights(layout, ring.memory.back().get()));
  }
  DBO_CUDA_CHECK(cudaStreamSynchronize(stream_.get()));
}

void MoeMemory::make_ubatch(MoeUbatch& ubatch, const UbatchLoad& load, const Plan& plan, int plan_rank,
                            const Router& router) {
  ubatch.rows = make_moe_batch(load, pages_);
  const MoeBatch& rows = ubatch.rows;
  ArrayPacker packer;
  const std::size_t positions = packer.add(rows.positions), slots = packer.add(rows.slot_mapping);
  const std::size_t lens = packer.add(rows.seq_lens), table = packer.add(rows.block_table);
  const std::size_t query_start = packer.add(rows.query_start), kv_start = packer.add(rows.kv_start);
  std::vector<std::int32_t> ids, last_rows;
  for (const std::int64_t token : rows.token_of_row) {
    // By token of the rank's batch: split or not, it is the same word.
    const auto vocab = static_cast<std::uint64_t>(std::max(plan.shape.vocab, 1));
    ids.push_back(static_cast<std::int32_t>(kernels::mix(seed_ + 7, static_cast<std::uint64_t>(token + 1)) % vocab));
  }
  for (int r = 1; r <= rows.decode_requests; ++r) last_rows.push_back(r * rows.query_tokens - 1);
  const int decode_rows = rows.decode_requests * rows.query_tokens;
  for (int r = 1; r <= rows.prefill_requests; ++r) {
    last_rows.push_back(decode_rows + rows.query_start[static_cast<std::size_t>(r)] - 1);
  }
  const std::size_t id_offset = packer.add(ids), last_offset = packer.add(last_rows);
  std::vector<std::size_t> experts(static_cast<std::size_t>(router.routing_classes()), SIZE_MAX);
  for (int layer = 0; layer < plan.shape.layers; ++layer) {
    std::size_t& offset = experts[static_cast<std::size_t>(router.routing_class(layer))];
    if (offset == SIZE_MAX) offset = packer.add(expert_rows(rows, load, router, plan_rank, layer, route_padding_));
  }
  ubatch.arrays = packer.upload();
  const auto* base = ubatch.arrays.as<std::int32_t>();
  for (const std::size_t offset : experts) ubatch.plan_expert.push_back(offset == SIZE_MAX ? nullptr : base + offset);
  ubatch.ids = base + id_offset;
  ubatch.last_rows = base + last_offset;
  ubatch.last_rows_host = last_rows;
  kernels::OpBatch& batch = ubatch.batch;
  batch.tokens = rows.tokens;
  batch.decode = {base + lens, base + table, rows.max_pages, rows.decode_requests, rows.query_tokens};
  batch.prefill.query_start = base + query_start;
  batch.prefill.seq_lens = base + lens + rows.decode_requests;
  batch.prefill.kv_start = base + kv_start;
  batch.prefill.block_table = base + table + rows.decode_requests * rows.max_pages;
  batch.prefill.max_pages = rows.max_pages;
  batch.prefill.requests = rows.prefill_requests;
  batch.prefill.query_blocks = rows.prefill_query_blocks;
  batch.prefill_tokens = rows.prefill_tokens;
  batch.prefill_keys = rows.prefill_keys;
  batch.positions = base + positions;
  batch.slot_mapping = base + slots;

  const std::int64_t residual_bytes = std::int64_t{rows.tokens} * dims_.hidden * 2;
  ubatch.logits_bytes = plan.find_op("HEAD") ? std::int64_t{rows.requests()} * dims_.vocab * 2 : 0;
  const auto carve = [&](kernels::Carver& carver) {
    ubatch.initial = carver.take(residual_bytes);
    ubatch.logits = carver.take(ubatch.logits_bytes);
  };
  kernels::Carver dry(nullptr);
  carve(dry);
  ubatch.own = DeviceBuffer(z(dry.used()));
  kernels::Carver carver(ubatch.own.get());
  carve(carver);
  fill_initial(ubatch);
}

void MoeMemory::fill_initial(const MoeUbatch& ubatch) {
  // By token of the rank's batch, so run by run of consecutive ones.
  const std::vector<std::int64_t>& tokens = ubatch.rows.token_of_row;
  const std::int64_t width = dims_.hidden;
  for (std::size_t begin = 0, end = 0; begin < tokens.size(); begin = end) {
    for (end = begin + 1; end < tokens.size() && tokens[end] == tokens[end - 1] + 1;) ++end;
    kernels::FillArgs args;
    args.out = static_cast<std::byte*>(ubatch.initial) + static_cast<std::int64_t>(begin) * width * 2;
    args.count = static_cast<std::int64_t>(end - begin) * width;
    args.seed = moe_initial_seed(seed_);
    args.first = (tokens[begin] + 1) * width;
    DBO_CUDA_CHECK(kernels::launch_fill(args, stream_.get()));
  }
}

void MoeMemory::make_activations(const Linear& linear) {
  std::vector<std::size_t> slot_bytes(plan_.buffers.size(), 0);
  const auto buffer_of = [&](std::string_view name) {
    for (std::size_t i = 0; i < plan_.buffers.size(); ++i) {
      if (plan_.buffers[i].name == name && plan_.buffers[i].by == SlotBy::Ubatch) return static_cast<BufferId>(i);
    }
    throw InputError("the plan has no buffer \"" + std::string(name) + "\" with a slot for each ubatch");
  };
  for (MoeUbatch& ubatch : ubatches_) {
    std::vector<std::size_t> bytes(slot_bytes.size(), 0);
    for (const Field& field : fields_of(dims_, ubatch.rows, ubatch.buffers)) {
      bytes[buffer_of(field.buffer)] += field.bytes;
    }
    for (std::size_t i = 0; i < bytes.size(); ++i) slot_bytes[i] = std::max(slot_bytes[i], bytes[i]);
  }
  for (std::size_t& bytes : slot_bytes) bytes += bytes > 0 ? kArenaAlign : 0;
  arena_ = std::make_unique<Arena>(plan_, linear, slot_bytes);
  activations_ = DeviceBuffer(arena_->bytes());
  for (const Buffer& buffer : plan_.buffers) slot_used_.emplace_back(static_cast<std::size_t>(buffer.slots), 0);
  for (std::size_t u = 0; u < ubatches_.size(); ++u) {
    std::vector<std::size_t> used(slot_bytes.size(), 0);
    for (const Field& field : fields_of(dims_, ubatches_[u].rows, ubatches_[u].buffers)) {
      const BufferId buffer = buffer_of(field.buffer);
      const int slot = static_cast<int>(u) % plan_.buffers[buffer].slots;
      const int place = share_rows_ && field.pointer == untyped(ubatches_[u].buffers.normed) ? 0 : slot;
      *field.pointer = activations_.get() + arena_->slot_offset(buffer, place) + used[buffer];
      used[buffer] += field.bytes;
      std::size_t& most = slot_used_[buffer][static_cast<std::size_t>(slot)];
      most = std::max(most, used[buffer]);
    }
  }
}

std::size_t MoeMemory::slot_used(const SlotUse& use) const {
  return slot_used_.at(use.buffer).at(static_cast<std::size_t>(use.slot));
}

void MoeMemory::make_scratch(const kernels::MoeDims& moe) {
  // One of each: ops of one kind are all on the compute lane, one behind the other.
  int tokens = 0, requests = 0;
  kernels::A1Limits limits;
  for (const MoeUbatch& ubatch : ubatches_) {
    tokens = std::max(tokens, ubatch.rows.tokens);
    requests = std::max(requests, ubatch.rows.requests());
    limits.decode_tokens = std::max(limits.decode_tokens, ubatch.batch.decode_tokens());
  }
  limits.tokens = tokens;
  limits.sms = context_.device_sms;
  const int width = std::max(dims_.moe.shared_intermediate, dims_.dense_intermediate);
  const auto carve = [&](kernels::Carver& carver) {
    a0_ = kernels::carve_a0(dims_, tokens, carver);
    a1_ = kernels::carve_a1(dims_, limits, carver);
    mlp_ = kernels::carve_mlp(dims_, moe, max_rows_, carver);
    swiglu_ = kernels::carve_swiglu(tokens, std::max(width, 8), carver);
    head_ = carver.take(std::int64_t{std::max(requests, 1)} * dims_.hidden * 2);
  };
  kernels::Carver dry(nullptr);
  carve(dry);
  scratch_ = DeviceBuffer(z(dry.used()));
  kernels::Carver carver(scratch_.get());
  carve(carver);
}

void MoeMemory::make_caches(std::int64_t budget, int layers, int given) {
  const bool mla = dims_.attention.kind == AttentionKind::Mla;
  const std::int64_t row = cache_row_elements(dims_);
  const std::int64_t elements = std::int64_t{pages_.pages()} * kCachePageTokens * row;
  const std::int64_t bytes = elements * 2 * (mla ? 1 : 2);
  int l2_bytes = 0, gpu = 0;
  DBO_CUDA_CHECK(cudaGetDevice(&gpu));
  DBO_CUDA_CHECK(cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, gpu));
  // Three at least: a ubatch may be two layers ahead of one that still reads what it wrote.
  const int fitting = std::max(kernels::ring_sets(layers, bytes, l2_bytes, budget),
                               static_cast<int>(std::min<std::int64_t>({3, layers, budget / bytes})));
  const int sets = given > 0 ? given : fitting;
  if (sets == 0) {
    throw InputError("one layer's cache takes " + std::to_string(bytes >> 20) + " MiB, more than the " +
                     std::to_string(budget >> 20) + " MiB there are for caches");
  }
  for (int i = 0; i < sets; ++i) {
    const std::uint64_t seed = moe_cache_seed(seed_, i);
    k_caches_.emplace_back(z(elements * 2));
    fill(k_caches_.back().get(), elements, seed);
    v_caches_.emplace_back(mla ? 0 : z(elements * 2));
    if (!mla) fill(v_caches_.back().get(), elements, seed + 1);
  }
}

MoeRings MoeMemory::rings() const {
  return {static_cast<int>(moe_ring_.sets.size()), static_cast<int>(dense_ring_.sets.size()),
          static_cast<int>(k_caches_.size())};
}

const kernels::LayerWeights& MoeMemory::layer(int layer) const {
  const Ring& ring = plan_.shape.is_moe_layer(layer) ? moe_ring_ : dense_ring_;
  return ring.sets[static_cast<std::size_t>(ordinal(plan_.shape, layer)) % ring.sets.size()];
}

kernels::KvCache MoeMemory::cache(int layer) const {
  const std::size_t set = static_cast<std::size_t>(layer) % k_caches_.size();
  return {k_caches_[set].get(), v_caches_[set].get(), pages_.pages()};
}

}  // namespace dbo::runtime
