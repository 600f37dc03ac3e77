// Everything that happens before the first kernel of a step: who votes for a split and who against, how the batch is
// cut, which graph is replayed and who gets which SMs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/batch/batch.h"
#include "sim/batch/settings.h"

namespace dbo {

/// Half-open.
struct Range {
  std::int64_t begin = 0, end = 0;

  std::int64_t size() const { return end - begin; }
  friend bool operator==(const Range&, const Range&) = default;
};

/// Why a step is split or not; of several causes the first in this order.
enum class Reason : std::uint8_t {
  Disabled,
  OneRank,
  RankNotAllowed,
  IdleRank,
  PrefixVeto,        ///< v1
  ModeMismatch,      ///< sglang
  ExtendLowLatency,  ///< sglang
  BelowThreshold,    ///< v1, mrv2
  EmptyLastUbatch,   ///< v1
  Split
};

inline constexpr int kReasons = 10;

std::string_view reason_name(Reason reason);  ///< "below-threshold"

/// One row of the matrix that the ranks exchange, a value a rank.
struct VoteRow {
  std::string_view name;
  std::vector<std::int64_t> values;
};

enum class GraphMode : std::uint8_t { None, Piecewise, Full };

std::string_view graph_mode_name(GraphMode mode);  ///< "none"

struct GraphChoice {
  GraphMode mode = GraphMode::None;
  std::optional<std::int64_t> size;  ///< tokens; null when nothing is replayed
  std::string why;
  /// The server's sizes that were captured as one batch, and those captured as ubatches; both empty when it has no
  /// graphs or one for every step.
  std::vector<std::int64_t> unsplit_sizes, ubatched_sizes;
};

/// Who gets which SMs during the step. comm + compute + idle = the GPU's SMs.
struct SmShare {
  int comm = 0;         ///< set aside for communication and used by it; 0: none is set aside
  int compute = 0;      ///< what compute kernels may use
  int idle = 0;         ///< set aside but used by nobody
  int comm_kernel = 0;  ///< SMs a comm kernel takes, set aside or not; 0: the transport sets none
};

/// The part of a rank's batch that one ubatch works on.
struct UbatchSlice {
  Range requests;         ///< real; a request that is cut is in two ubatches
  Range tokens;           ///< real
  Range padded_tokens;    ///< what is computed
  Range padded_requests;  ///< with the rows that graph padding adds
  /// Attention metadata: of the padded slice when a full graph is replayed, of the real one otherwise.
  Range block_table_rows;                     ///< the requests it covers
  std::vector<std::int32_t> query_start_loc;  ///< one more than requests
  std::vector<std::int32_t> seq_lens;

  bool empty() const { return tokens.size() == 0; }
  /// Slots of the parent's slot mapping: those of `padded_tokens`, of which the last so many are unused (-1).
  std::int64_t unused_slots() const { return padded_tokens.size() - tokens.size(); }
};

struct RankSplit {
  SharedVector<UbatchSlice> ubatches;  ///< one when the step is not split
};

struct Decision {
  bool split = false;
  Reason reason = Reason::Disabled;
  std::string reason_text;
  std::vector<std::int8_t> votes;  ///< a rank: v1's vote, mrv2's allow flag, sglang's can-run flag
  std::vector<VoteRow> vote_rows;
  std::optional<std::int64_t> padded_tokens;  ///< common to all ranks; null: each keeps its own size
  GraphChoice graph;
  SmShare sms;
  int ubatches = 1;
  std::vector<RankSplit> ranks;
};

/// Decides one step. Pure; the same on every rank, as each of them sees the same matrix.
Decision decide(const StepBatch& step, const DecideSettings& settings);
/// The same, reusing the memory of an earlier decision: for one step after the other.
void decide(const StepBatch& step, const DecideSettings& settings, Decision& decision);

/// The same server with DBO off, which a split step is compared with.
DecideSettings without_dbo(DecideSettings settings);

}  // namespace dbo
