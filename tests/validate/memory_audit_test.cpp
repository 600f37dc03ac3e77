#include "validate/memory_audit.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <memory>

#include "runtime/arena.h"
#include "tests/fakes/small_plans.h"

using namespace dbo;
using namespace dbo::validate;

namespace {

/// A rank's arena whose ops write a number of their own into each slot they write.
class Rank {
 public:
  explicit Rank(std::string_view schedule = "vllm-ht", Transport transport = Transport::LsaHt)
      : plan_(make_plan(schedule, fakes::small_spec(4, 2, transport))), linear_(linearise(plan_, 0)) {
    std::vector<std::size_t> bytes;
    // As on a GPU: what the exchange holds lies elsewhere.
    for (const Buffer& buffer : plan_.buffers)
      bytes.push_back(buffer.by == SlotBy::Ubatch && buffer.name != "received" && buffer.name != "expert_out" ? 256
                                                                                                              : 0);
    arena_ = std::make_unique<runtime::Arena>(plan_, linear_, bytes);
    seen_.resize(arena_->slots().size());
  }

  /// One step, each op followed by `meddle`; `instead` (may be empty) takes the place of an op's own writes when true.
  std::vector<std::string> run(const std::function<void(std::uint32_t op)>& behind,
                               const std::function<void(std::uint32_t op)>& during = {}) {
    MemoryAudit audit(plan_, linear_, arena_->slots());
    audit.begin(seen_);
    for (const HostStep& step : linear_.host) {
      if (step.verb != Verb::Launch) continue;
      for (const std::size_t slot : audit.before(step.index, seen_)) seen_[slot] = {~0ull, true};
      for (std::size_t slot = 0; slot < seen_.size(); ++slot)
        if (writes(step.index, slot)) seen_[slot].content = mix_bits(step.index + 1);
      if (during) during(step.index);
      audit.after(step.index, seen_);
      if (behind) behind(step.index);
    }
    return audit.problems();
  }

  bool writes(std::uint32_t op, std::size_t slot) const {
    const runtime::ArenaSlot& s = arena_->slots()[slot];
    const auto& buffers = plan_.op(linear_.ops[op].op).writes;
    return std::find(buffers.begin(), buffers.end(), s.use.buffer) != buffers.end() &&
           s.use.slot == linear_.ops[op].ubatch;
  }
  std::size_t slot(std::string_view buffer, int index) const {
    for (std::size_t i = 0; i < arena_->slots().size(); ++i) {
      const runtime::SlotUse& use = arena_->slots()[i].use;
      if (plan_.buffers[use.buffer].name == buffer && use.slot == index) return i;
    }
    return SIZE_MAX;
  }
  bool is(std::uint32_t op, OpKind kind, int ubatch, int layer) const {
    const LinearOp& o = linear_.ops[op];
    return plan_.op(o.op).kind == kind && o.ubatch == ubatch && o.layer == layer;
  }
  std::vector<SlotSight>& seen() { return seen_; }

 private:
  static std::uint64_t mix_bits(std::uint64_t x) { return x * 0x9e3779b97f4a7c15ull; }

  Plan plan_;
  Linear linear_;
  std::unique_ptr<runtime::Arena> arena_;
  std::vector<SlotSight> seen_;
};

}  // namespace

TEST_CASE("audit: a step whose ops write what the plan says has no problem, on any schedule") {
  for (const std::string_view schedule : {"vllm-ht", "sglang-prefill"}) CHECK(Rank(schedule).run({}).empty());
  for (const std::string_view schedule : {"vllm-ll", "sglang-decode"})
    CHECK(Rank(schedule, Transport::LsaLl).run({}).empty());
}

TEST_CASE("audit: an op of one ubatch in the other's live buffer is F8, and told once a slot") {
  Rank rank;
  const std::size_t tokens0 = rank.slot("tokens", 0);
  REQUIRE(tokens0 != SIZE_MAX);
  // Every A1 of ubatch 1 writes where ubatch 0's rows wait for their experts.
  const auto problems = rank.run({}, [&](std::uint32_t op) {
    for (int layer = 0; layer < 4; ++layer)
      if (rank.is(op, OpKind::A1, 1, layer)) rank.seen()[tokens0].content += 1;
  });
  REQUIRE(problems.size() == 1);
  CHECK(problems[0].rfind(
            "F8 shared buffer: A1 of ubatch 1, layer 0 wrote into slot 0 of \"tokens\", which holds what A1 "
            "of ubatch 0, layer 0 left for ",
            0) == 0);
}

TEST_CASE("audit: what changes while no op runs, or by an op of its own ubatch that only reads, is F14") {
  Rank rank;
  const std::size_t routed = rank.slot("routed", 0);
  const auto freed = rank.run([&](std::uint32_t op) {
    if (rank.is(op, OpKind::C, 0, 1)) rank.seen()[routed].content = 0;
  });
  REQUIRE(freed.size() == 1);
  CHECK(freed[0].rfind(
            "F14 lifetime: slot 0 of \"routed\" changed behind C of ubatch 0, layer 1, while no op ran; it held "
            "what C of ubatch 0, layer 1 left for A0 of ubatch 0, layer 2",
            0) == 0);
  Rank reader;
  const std::size_t tokens = reader.slot("tokens", 0);
  const auto spoilt = reader.run({}, [&](std::uint32_t op) {
    if (reader.is(op, OpKind::D, 0, 2)) reader.seen()[tokens].content += 1;
  });
  REQUIRE(spoilt.size() == 1);
  CHECK(spoilt[0].rfind("F14 lifetime: D of ubatch 0, layer 2 wrote into slot 0 of \"tokens\"", 0) == 0);
}

TEST_CASE("audit: nobody minds what happens to a slot between its last reader and its next writer") {
  Rank rank;
  const std::size_t qkv = rank.slot("qkv", 0);
  CHECK(rank.run([&](std::uint32_t op) {
              if (rank.is(op, OpKind::A1, 0, 1)) rank.seen()[qkv].content = 7;
            })
            .empty());
}

TEST_CASE("audit: bytes behind the end of a buffer are named with the op that wrote there") {
  Rank rank;
  const std::size_t shared = rank.slot("shared", 1);
  const auto problems = rank.run({}, [&](std::uint32_t op) {
    if (rank.is(op, OpKind::S, 1, 1)) rank.seen()[shared].guard_kept = false;
  });
  REQUIRE(problems.size() == 1);
  CHECK(problems[0] == "guard: S of ubatch 1, layer 1 wrote behind the end of slot 1 of \"shared\"");
}

TEST_CASE("audit: rows of padding must choose no expert (F12), tokens as many different ones as they should") {
  const std::vector<std::int64_t> rows{4, 5, -1};
  CHECK(check_choices({0, 3, 2, 1, -1, -1}, rows, 2, 4) == "");
  CHECK(check_choices({0, 3, 2, 1, 0, -1}, rows, 2, 4) ==
        "F12 padding routed as real tokens: 1 rows of padding chose experts");
  CHECK(check_choices({0, 0, 2, 1, -1, -1}, rows, 2, 4) ==
        "routing: 1 rows did not choose 2 different experts below 4");
  CHECK(check_choices({0, 4, -1, 1, -1, -1}, rows, 2, 4) ==
        "routing: 2 rows did not choose 2 different experts below 4");
}
