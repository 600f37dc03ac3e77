// Device memory of a MoE model's ops on one rank: weights in rings, caches, activations, scratch, batch arrays. All of
// it is allocated and filled before the first step.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/compute/ops.h"
#include "runtime/arena.h"
#include "runtime/cuda/handles.h"
#include "runtime/moe_batch.h"
#include "sim/plan/plan.h"
#include "sim/plan/routing.h"

namespace dbo::runtime {

/// How many sets of each sort a memory holds: layer i reads set i modulo that.
struct MoeRings {
  int moe = 0, dense = 0, caches = 0;

  friend bool operator==(const MoeRings&, const MoeRings&) = default;
};

struct MoeMemoryOptions {
  std::uint64_t seed = 1;
  /// Of the free device memory, what weights and caches may take.
  double share = 0.6;
  /// At least so many sets in a ring where they fit: for ops of one kind behind each other, which read less than a
  /// layer in turn.
  int least_sets = 2;
  /// The rank's whole batch where the plan holds a part of it in each ubatch: a request cut in two has one place in the
  /// cache. Absent: every ubatch's requests are requests of their own.
  std::optional<UbatchLoad> whole;
  /// Those of another memory that has to hold the same weights layer by layer. Absent: what fits and is of use.
  std::optional<MoeRings> rings;
  // Faults, to prove that they are found.
  bool share_rows = false;     ///< all ubatches put the normed rows, input of their experts, in one place
  bool route_padding = false;  ///< padding rows pick experts as if they were tokens
};

/// Seeds of what a rank's memory begins with, from the one of its options: what a reference needs to make the same.
/// `set` is the position in a ring; layer i of a kind has set i mod the number of sets.
std::uint64_t moe_layer_seed(std::uint64_t seed, int set);  ///< weights of a MoE layer (kernels::tensor_seed)
std::uint64_t moe_cache_seed(std::uint64_t seed, int set);  ///< keys; values have the next one. By element, scale 1
std::uint64_t moe_initial_seed(std::uint64_t seed);  ///< residual stream of token t: elements from (t + 1) hidden on

/// One ubatch's arrays and activations.
struct MoeUbatch {
  MoeBatch rows;
  kernels::OpBatch batch;
  kernels::UbatchBuffers buffers;
  std::vector<const std::int32_t*> plan_expert;  ///< [routing classes] device [tokens][top_k]
  const std::int32_t* ids = nullptr;             ///< device [tokens] for the embedding
  const std::int32_t* last_rows = nullptr;       ///< device [requests] rows that need logits
  std::vector<std::int32_t> last_rows_host;      ///< the same
  void* initial = nullptr;                       ///< device [tokens][hidden] residual stream where nothing embeds
  void* logits = nullptr;                        ///< device bf16 [requests][vocab]
  std::int64_t logits_bytes = 0;
  DeviceBuffer arrays, own;
};

class MoeMemory {
 public:
  /// For the load of `plan_rank`, whose order is `linear`, on the current GPU. Activations lie where the plan's reads
  /// and writes let them: FindingError when the plan orders too little (see Arena). `max_rows`: rows the routed experts
  /// may get in one call. Throws InputError when the kernels cannot run the model (why) or when not even one set of
  /// weights fits.
  MoeMemory(const Plan& plan, const Linear& linear, int plan_rank, const Router& router, const kernels::MoeDims& moe,
            std::int64_t max_rows, const MoeMemoryOptions& options);
  ~MoeMemory();
  MoeMemory(const MoeMemory&) = delete;
  MoeMemory& operator=(const MoeMemory&) = delete;

  const kernels::LayerDims& dims() const { return dims_; }
  kernels::OpContext& context() { return context_; }
  MoeUbatch& ubatch(int index) { return ubatches_[static_cast<std::size_t>(index)]; }
  const MoeUbatch& ubatch(int index) const { return ubatches_[static_cast<std::size_t>(index)]; }
  int ubatches() const { return static_cast<int>(ubatches_.size()); }

  /// The activations' layout; `activations` plus a slot's offset is where it lies.
  const Arena& arena() const { return *arena_; }
  std::byte* activations() const { return activations_.get(); }
  /// Bytes of a slot that ops use; what is left up to its end, some hundred bytes at least, is nobody's.
  std::size_t slot_used(const SlotUse& use) const;

  /// Weights of a layer: its set of the ring of MoE or of dense layers.
  const kernels::LayerWeights& layer(int layer) const;
  const kernels::LayerWeights& model() const { return model_; }
  kernels::KvCache cache(int layer) const;
  const float* rope() const { return rope_.as<float>(); }
  const kernels::A0Scratch& a0() const { return a0_; }
  const kernels::A1Scratch& a1() const { return a1_; }
  const kernels::MlpScratch& mlp() const { return mlp_; }
  const kernels::SwiGluScratch& swiglu() const { return swiglu_; }
  void* head_scratch() const { return head_; }
  std::int64_t max_rows() const { return max_rows_; }
  MoeRings rings() const;

 private:
  struct Ring {
    std::vector<DeviceBuffer> memory;
    std::vector<kernels::LayerWeights> sets;
  };

  void make_ring(Ring& ring, kernels::WeightSet set, int layers, std::int64_t budget,
                 const std::function<std::uint64_t(int)>& seed, int first_expert, int given);
  void make_ubatch(MoeUbatch& ubatch, const UbatchLoad& load, const Plan& plan, int plan_rank, const Router& router);
  void fill_initial(const MoeUbatch& ubatch);
  void make_activations(const Linear& linear);
  void make_scratch(const kernels::MoeDims& moe);
  void make_caches(std::int64_t budget, int layers, int given);
  void fill(void* memory, std::int64_t elements, std::uint64_t seed);

  const Plan& plan_;
  kernels::LayerDims dims_;
  std::int64_t max_rows_;
  std::uint64_t seed_;
  int least_sets_;
  bool share_rows_, route_padding_;
  std::vector<std::vector<std::size_t>> slot_used_;  ///< by buffer, slot
  Stream stream_;
  kernels::OpContext context_;
  DeviceBuffer dense_scratch_, scratch_, rope_, model_memory_, activations_;
  std::unique_ptr<Arena> arena_;
  Ring moe_ring_, dense_ring_;
  kernels::LayerWeights model_;
  std::vector<MoeUbatch> ubatches_;
  RequestPages pages_;
  std::vector<DeviceBuffer> k_caches_, v_caches_;  ///< by ring position
  kernels::A0Scratch a0_;
  kernels::A1Scratch a1_;
  kernels::MlpScratch mlp_;
  kernels::SwiGluScratch swiglu_;
  void* head_ = nullptr;
};

}  // namespace dbo::runtime
