// What a kernel does, by its name: a table of rules in a data file, which users may put their own in front of.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/op_kind.h"

namespace dbo {

/// What the name of a kernel says. Which op it is part of also takes its place among the others (layer_recovery.h).
enum class Role : std::uint8_t {
  Unknown,  ///< no rule matched; counted as compute
  Attention,
  AttentionPrep,
  Router,
  Experts,
  ExpertsAux,
  Norm,
  Gemm,
  Elementwise,
  Embed,
  Sample,
  DispatchSetup,
  Dispatch,
  DispatchLowLatency,  ///< send and receive have one name
  DispatchSend,
  DispatchRecv,
  CombineSetup,
  Combine,
  CombineLowLatency,
  CombineSend,
  CombineRecv,
  CommSetup,
  AllGather,
  ReduceScatter,
  AllToAll,
  Comm,
  Memory
};
inline constexpr int kRoles = 27;

enum class KernelClass : std::uint8_t { Compute, Comm, Memory };

std::string_view role_name(Role role);
KernelClass class_of(Role role);

/// What a named range of the host covers. `attention_whole`: both halves.
struct RangeOp {
  OpKind kind = OpKind::Other;
  bool attention_whole = false;
};

class KernelRules {
 public:
  /// The built-in rules.
  KernelRules();

  /// Puts the rules of a file (same form as traces/data/kernel_rules.json) in front. Throws InputError with pointer.
  void add_file(const std::string& path);

  Role role(std::string_view kernel_name) const;
  std::optional<RangeOp> range(std::string_view range_name) const;

 private:
  struct Rule {
    std::vector<std::string> match, except;
    Role role = Role::Unknown;
    RangeOp range;
  };

  void add(const std::string& path_or_name, std::string_view text, bool file);

  std::vector<Rule> kernels_, ranges_;
};

/// Whether `text` holds `pattern` (lower case) somewhere, ignoring case: `*` stands for anything, a leading `^` ties it
/// to the beginning.
bool pattern_matches(std::string_view pattern, std::string_view text);

}  // namespace dbo
