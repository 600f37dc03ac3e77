// The step's batch as every rank sees it, before any decision.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "sim/base/shared_vector.h"

namespace dbo {

/// One request scheduled in a step.
struct Request {
  std::int64_t query = 1;            ///< tokens scheduled now
  std::int64_t seq = 1;              ///< context length after the step; computed = seq - query
  std::vector<std::int64_t> blocks;  ///< KV-cache block table; empty when not given

  std::int64_t computed() const { return seq - query; }
  friend bool operator==(const Request&, const Request&) = default;
};

/// The batch of one data-parallel rank.
struct RankBatch {
  SharedVector<Request> requests;             ///< ranks with equal batches share them
  std::optional<std::int64_t> padded_tokens;  ///< what the rank's own graph padding makes of it
  std::optional<std::int64_t> padded_requests;
  bool allow = true;  ///< the rank may split this step

  std::int64_t tokens() const;
  /// Whether it is known without a look at the requests that both are equal.
  bool shares(const RankBatch& other) const {
    return requests.shares(other.requests) && padded_tokens == other.padded_tokens &&
           padded_requests == other.padded_requests && allow == other.allow;
  }
  friend bool operator==(const RankBatch&, const RankBatch&) = default;
};

/// One step: the batch of every data-parallel rank.
struct StepBatch {
  std::vector<RankBatch> ranks;
  std::int64_t block_size = 16;
  std::int64_t draft_tokens = 0;

  friend bool operator==(const StepBatch&, const StepBatch&) = default;
};

}  // namespace dbo
