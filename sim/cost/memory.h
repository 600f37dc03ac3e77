// What a plan's step takes of a GPU's memory: an estimate of the parts that decide whether a batch fits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/model/hardware.h"
#include "sim/plan/plan.h"

namespace dbo {

/// Bytes on the GPU that needs most.
struct MemoryUse {
  std::int64_t weights_bytes = 0;     ///< attention, dense and shared layers, the rank's experts, embeddings
  std::int64_t kv_cache_bytes = 0;    ///< of the tokens this step's requests have cached
  std::int64_t exchange_bytes = 0;    ///< all-to-all buffers of the transport
  std::int64_t activation_bytes = 0;  ///< of all ubatches at once, experts' rows included
  std::int64_t graph_bytes = 0;       ///< captured graphs
  std::int64_t twin_bytes = 0;        ///< graphs captured a second time for split steps
  std::int64_t hbm_bytes = 0;         ///< of the GPU

  std::int64_t total_bytes() const {
    return weights_bytes + kv_cache_bytes + exchange_bytes + activation_bytes + graph_bytes + twin_bytes;
  }
  bool fits() const { return total_bytes() <= hbm_bytes; }
};

/// `graphs` and `twins`: how many graphs the server has captured, un-split and split. Empty shapes (layer counts alone)
/// have no memory: all zero but hbm_bytes.
MemoryUse memory_use(const Plan& plan, const GpuSpec& gpu, int graphs, int twins);

/// Bytes of the transport's buffers on one rank, for at most `tokens` a rank and call; `sms` of the comm kernels.
/// `ll` and `ht` are DeepEP's own sizes, the others those of fixed slots for every peer.
std::int64_t exchange_buffer_bytes(const Plan& plan, std::int64_t tokens);

/// Sentences on what the estimate leaves out.
std::vector<std::string> memory_assumptions();

}  // namespace dbo
