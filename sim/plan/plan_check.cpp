#include "sim/plan/plan_check.h"

#include <algorithm>
#include <utility>

#include "sim/base/error.h"
#include "sim/plan/data_check.h"
#include "sim/plan/findings.h"
#include "sim/plan/linearise.h"
#include "sim/plan/plan_graph.h"

namespace dbo {
namespace {

constexpr std::pair<std::string_view, std::string_view> kFailures[] = {
    {"F1", "ranks in different orders"},
    {"F2", "unequal yields"},
    {"F3", "late event"},
    {"F4", "comm kernel on the compute lane"},
    {"F5", "missing wait"},
    {"F6", "too many calls in flight"},
    {"F7", "hook misuse"},
    {"F8", "slot shared by ubatches"},
    {"F9", "prefix written by the other ubatch"},
    {"F10", "wrong slice"},
    {"F11", "empty ubatch in a graph"},
    {"F14", "buffer reused too early"},
    {"F15", "idle rank"},
    {"F17", "no SMs for the comm kernel"},
    {"F18", "more ubatches than handles"},
    {"capture", "host wait inside a graph"},
};

constexpr std::size_t kCallsOfCircle = 64;  ///< a circle closes soon after the calls differ, or never

int lowest_rank(const RankClass& c) {
  int lowest = INT32_MAX;
  for (const auto& [first, end] : c.ranks) lowest = std::min(lowest, first);
  return lowest;
}

/// Classes with the same threads have the same order: one entry each.
struct Programs {
  const RankClass* rank_class;  ///< the first of them
  int ubatches = 0;             ///< that its launches work on
  Linear linear;
};

class PlanChecker {
 public:
  explicit PlanChecker(const Plan& plan) : plan_(plan) {
    for (std::size_t c = 0; c < plan.classes.size(); ++c) {
      const RankClass& rank_class = plan.classes[c];
      const auto same = [&](const Programs& p) { return p.rank_class->threads == rank_class.threads; };
      if (std::any_of(programs_.begin(), programs_.end(), same)) continue;
      Programs p{&rank_class, 0, linearise(plan, static_cast<int>(c))};
      for (const LinearOp& op : p.linear.ops) p.ubatches = std::max<int>(p.ubatches, op.ubatch + 1);
      programs_.push_back(std::move(p));
    }
  }

  PlanCheck run() {
    bool sound = true;
    for (const Programs& p : programs_) {
      findings_.at_rank(lowest_rank(*p.rank_class));
      check_hooks(p);
      check_exits(p);
      for (const OrderProblem& problem : p.linear.problems) {
        sound = false;
        // The first of a kind; what follows it repeats it layer by layer, or is its consequence.
        findings_.add(problem.code, true, {UINT32_MAX, 0, 0, 0}, [&] { return problem.text; });
      }
      // Past a broken order everything else would be a consequence.
      if (p.linear.problems.empty()) check_data(plan_, *p.rank_class, p.linear, findings_);
      check_capture(p);
    }
    if (sound) check_ranks_agree();
    check_lanes();
    check_handles();
    check_loads();
    PlanCheck out;
    out.findings = findings_.take();
    std::stable_sort(out.findings.begin(), out.findings.end(),
                     [](const PlanFinding& a, const PlanFinding& b) { return a.stops && !b.stops; });
    out.programs = static_cast<int>(programs_.size());
    for (const Programs& p : programs_) out.ops += static_cast<std::int64_t>(p.linear.ops.size());
    return out;
  }

 private:
  std::string name(const Programs& p, std::uint32_t op) const { return describe(plan_, p.linear.ops[op]); }

  /// A hook is the receive of the registering ubatch's own call: the next thread runs it.
  void check_hooks(const Programs& p) {
    if (p.rank_class->threads.size() < 2) return;
    for (const int t : p.rank_class->threads) {
      const Thread& thread = plan_.threads[static_cast<std::size_t>(t)];
      const auto look = [&](const Program& body) {
        for (const Instruction& i : body) {
          for (const OpRef& ref : i.hook) {
            if (ref.ubatch < 0 || ref.ubatch == thread.ubatch) continue;
            findings_.add("F7", true, {static_cast<std::uint32_t>(t), ref.op, 0, 0}, [&] {
              return "ubatch " + std::to_string(thread.ubatch) + " hooks " + plan_.ops[ref.op].name + " of ubatch " +
                     std::to_string(ref.ubatch) +
                     ": a receive is hooked by the ubatch that sent, and run by the one after it";
            });
          }
        }
      };
      look(thread.body);
      for (const Instruction& i : thread.body)
        if (i.verb == Verb::Repeat || i.verb == Verb::Block) look(plan_.blocks[i.block].body);
    }
  }

  /// Whoever leaves hands the baton on; what comes after leaving never runs.
  void check_exits(const Programs& p) {
    for (const int t : p.rank_class->threads) {
      const Thread& thread = plan_.threads[static_cast<std::size_t>(t)];
      const auto first = std::find_if(thread.body.begin(), thread.body.end(),
                                      [](const Instruction& i) { return i.verb == Verb::Exit; });
      if (first != thread.body.end() && first + 1 == thread.body.end()) continue;
      findings_.add("F2", true, {static_cast<std::uint32_t>(t), 0, 0, 0}, [&] {
        const std::string who = "ubatch " + std::to_string(thread.ubatch);
        return first == thread.body.end()
                   ? who + " ends without \"exit\": the baton is never handed on, and the step never ends"
                   : who + " exits before its last instruction: what follows never runs";
      });
    }
  }

  void check_capture(const Programs& p) {
    if (plan_.execution != Execution::Graph) return;
    for (const HostStep& step : p.linear.host) {
      if (step.verb != Verb::HostWait) continue;
      findings_.add("capture", false, {p.linear.ops[step.index].op, 0, 0, 0}, [&] {
        return "the host waits for " + name(p, step.index) + (step.notify ? " to say its counts" : " to end") +
               ", but the step is one captured graph: capture fails";
      });
    }
    const TransportInfo& transport = transport_info(plan_.transport);
    const auto call =
        std::find_if(p.linear.ops.begin(), p.linear.ops.end(), [](const LinearOp& op) { return op.call != kNone; });
    if (transport.capturable || call == p.linear.ops.end()) return;
    findings_.add("capture", false, {UINT32_MAX, 0, 0, 0}, [&] {
      return describe(plan_, *call) + " is part of one captured graph, but transport " + std::string(transport.name) +
             " cannot be captured";
    });
  }

  /// Dispatch and combine meet by the number of the call, so every rank must make the same calls in the same order.
  /// Where they do, no rank can wait for another in a circle: a call waits only for earlier ones.
  void check_ranks_agree() {
    const Programs& first = programs_.front();
    const std::vector<std::uint32_t> calls = calls_of(first);
    for (const Programs& other : programs_) {
      const std::vector<std::uint32_t> others = calls_of(other);
      std::size_t n = 0;
      while (n < calls.size() && n < others.size() && same_call(first, calls[n], other, others[n])) ++n;
      if (n == calls.size() && n == others.size()) continue;
      findings_.at_rank(lowest_rank(*other.rank_class));
      const bool idle = calls.empty() || others.empty();
      findings_.add(idle ? "F15" : "F1", true, {0, 0, 0, 0}, [&] {
        const auto call = [&](const Programs& p, const std::vector<std::uint32_t>& list) {
          const std::string rank = "rank " + std::to_string(lowest_rank(*p.rank_class)) + " ";
          if (list.empty()) return rank + "makes no call at all";
          if (n == list.size()) return rank + "makes no more calls after " + name(p, list.back());
          return rank + "makes " + name(p, list[n]);
        };
        std::string text = "as call number " + std::to_string(n) + ", " + call(first, calls) + ", but " +
                           call(other, others) + ": neither gets the data it waits for";
        if (first.ubatches != other.ubatches)
          text += ", as they decided differently (" + std::to_string(first.ubatches) + " and " +
                  std::to_string(other.ubatches) + " ubatches)";
        return text + circle(n + kCallsOfCircle);
      });
    }
  }

  std::vector<std::uint32_t> calls_of(const Programs& p) const {
    std::vector<std::uint32_t> calls;
    for (std::uint32_t i = 0; i < p.linear.ops.size(); ++i) {
      const OpKind kind = plan_.ops[p.linear.ops[i].op].kind;
      if (is_send(kind) || is_collective(kind)) calls.push_back(i);
    }
    return calls;
  }

  static bool same_call(const Programs& p, std::uint32_t a, const Programs& q, std::uint32_t b) {
    const LinearOp& x = p.linear.ops[a];
    const LinearOp& y = q.linear.ops[b];
    return x.op == y.op && x.ubatch == y.ubatch && x.layer == y.layer;
  }

  /// The shortest circle of ops that wait for each other across the ranks, when there is one; empty otherwise.
  /// Only the first `calls` calls of each rank are looked at.
  std::string circle(std::size_t calls) const {
    std::vector<Linear> linear;
    for (const RankClass& c : plan_.classes)
      for (const Programs& p : programs_)
        if (p.rank_class->threads == c.threads) linear.push_back(beginning(p.linear, calls));
    const PlanGraph graph = plan_graph(plan_, linear);
    const std::vector<std::uint32_t> cycle = find_cycle(graph, plan_, linear);
    std::string text;
    for (std::size_t i = cycle.size(); i-- > 0;)
      text += (text.empty() ? ". The circle: " : "; ") +
              step_of_circle(graph, linear, cycle[i == 0 ? cycle.size() - 1 : i - 1], cycle[i]);
    return text;
  }

  /// The order up to the first op behind `calls` calls. Its queues are left out: the graph needs their number only.
  Linear beginning(const Linear& whole, std::size_t calls) const {
    Linear part;
    part.queues.resize(whole.queues.size());
    for (const HostStep& step : whole.host) {
      if (step.verb == Verb::Launch) {
        const OpKind kind = plan_.ops[whole.ops[step.index].op].kind;
        if ((is_send(kind) || is_collective(kind)) && calls-- == 0) break;
        part.ops.push_back(whole.ops[step.index]);
      } else if (step.verb == Verb::Record) {
        part.records.push_back(whole.records[step.index]);
      } else if (step.verb == Verb::Wait) {
        part.waits.push_back(whole.waits[step.index]);
      }
      part.host.push_back(step);
    }
    return part;
  }

  /// Why node `to` waits for node `from`. Comm kernels of one call start together, so any rank's edge will do.
  std::string step_of_circle(const PlanGraph& graph, const std::vector<Linear>& linear, std::uint32_t from,
                             std::uint32_t to) const {
    const auto op_of = [&](std::uint32_t node) -> const LinearOp& {
      return linear[static_cast<std::size_t>(graph.nodes[node].class_index)].ops[graph.nodes[node].op];
    };
    const auto same = [&](std::uint32_t a, std::uint32_t b) {
      const LinearOp &x = op_of(a), &y = op_of(b);
      return a == b ||
             (is_collective(plan_.ops[x.op].kind) && x.op == y.op && x.ubatch == y.ubatch && x.layer == y.layer);
    };
    const auto rank = [&](std::uint32_t node) {
      return "rank " +
             std::to_string(lowest_rank(plan_.classes[static_cast<std::size_t>(graph.nodes[node].class_index)]));
    };
    for (const GraphEdge& edge : graph.edges) {
      if (!same(edge.from, from) || !same(edge.to, to)) continue;
      const std::string before = describe(plan_, op_of(edge.from)), after = describe(plan_, op_of(edge.to));
      switch (edge.kind) {
        case EdgeKind::Lane:
          return "on " + rank(edge.to) + " " + after + " is behind " + before + " on " +
                 plan_.lanes[op_of(edge.to).lane];
        case EdgeKind::Wait:
          return "on " + rank(edge.to) + " " + after + " waits for " + before + " by an event";
        case EdgeKind::Host:
          return "on " + rank(edge.to) + " the host waits for " + before + " before it launches " + after;
        case EdgeKind::Data:
          return after + " on " + rank(edge.to) + " needs " + before + " of " + rank(edge.from);
      }
    }
    throw InternalError("a circle without an edge");
  }

  int ubatches() const {
    int most = 0;
    for (const Programs& p : programs_) most = std::max(most, p.ubatches);
    return most;
  }

  /// What hides nothing or starves: comm kernels beside compute kernels.
  void check_lanes() {
    if (ubatches() < 2) return;
    for (OpId id = 0; id < plan_.ops.size(); ++id) {
      const OpDef& op = plan_.ops[id];
      if (!is_collective(op.kind)) continue;
      const bool shares = std::any_of(plan_.ops.begin(), plan_.ops.end(), [&](const OpDef& other) {
        return is_compute(other.kind) && other.kind == OpKind::MLP && other.lane == op.lane;
      });
      if (shares) {
        findings_.add("F4", false, {id, 0, 0, 0}, [&] {
          return op.name + " is on lane " + plan_.lanes[op.lane] + ", behind and before the experts: nothing hides it";
        });
      } else if (starves(op)) {
        findings_.add("F17", false, {0, 0, 0, 0}, [&] {
          return op.name + " needs SMs, and none are set aside: it waits until blocks of a compute kernel that fills " +
                 "the GPU have drained";
        });
      }
    }
  }

  bool starves(const OpDef& op) const {
    const TransportInfo& transport = transport_info(plan_.transport);
    if (op.sms != SmPool::Comm || !transport.limits_sms) return false;
    return plan_.sm.control == SmControl::None || plan_.sm.comm == 0;
  }

  void check_handles() {
    const int handles = transport_info(plan_.transport).handle_slots;
    const auto calls = [](const Programs& p) {
      return std::any_of(p.linear.ops.begin(), p.linear.ops.end(), [](const LinearOp& op) { return op.call != kNone; });
    };
    if (handles == 0 || ubatches() <= handles || std::none_of(programs_.begin(), programs_.end(), calls)) return;
    findings_.add("F18", false, {0, 0, 0, 0}, [&] {
      return std::to_string(ubatches()) + " ubatches need a handle each, but transport " +
             std::string(transport_info(plan_.transport).name) + " has " + std::to_string(handles) +
             ": the dispatch of ubatch " + std::to_string(handles) + " has no slot";
    });
  }

  void check_loads() {
    for (const RankClass& c : plan_.classes) {
      findings_.at_rank(lowest_rank(c));
      const std::vector<UbatchLoad>& ubatches = plan_.loads[static_cast<std::size_t>(c.load)].ubatches;
      for (std::size_t u = 0; u < ubatches.size(); ++u) {
        const std::string wrong = wrong_slice(ubatches, u);
        if (!wrong.empty())
          findings_.add("F10", false, {0, 0, 0, 0}, [&] {
            return "ubatch " + std::to_string(u) + " of rank " + std::to_string(lowest_rank(c)) + wrong;
          });
        if (ubatches[u].tokens() == 0 && ubatches[u].padded > 0 && ubatches.size() > 1 &&
            plan_.execution == Execution::Graph)
          findings_.add("F11", false, {0, 0, 0, 0}, [&] {
            return "ubatch " + std::to_string(u) + " of rank " + std::to_string(lowest_rank(c)) + " has " +
                   std::to_string(ubatches[u].padded) +
                   " padded tokens and no real one: a replayed graph works on what the last step left there";
          });
      }
    }
  }

  /// What does not fit in an ubatch's slice; empty when all does.
  std::string wrong_slice(const std::vector<UbatchLoad>& ubatches, std::size_t u) const {
    const UbatchLoad& load = ubatches[u];
    const std::int64_t begin = u == 0 ? 0 : ubatches[u - 1].token_end;
    if (load.tokens() > 0 && load.token_begin != begin)
      return " begins at token " + std::to_string(load.token_begin) + ", not at " + std::to_string(begin) +
             " where the ubatch before it ends";
    const std::vector<std::int32_t>& starts = load.query_start_loc;
    if (starts.size() != load.seq_lens.size() + 1) return "";  // given without metadata
    if (starts.back() != load.tokens())
      return " has " + std::to_string(load.tokens()) + " tokens, but its query_start_loc covers " +
             std::to_string(starts.back());
    for (std::size_t r = 0; r < load.seq_lens.size(); ++r) {
      const std::int32_t query = starts[r + 1] - starts[r];
      if (load.seq_lens[r] < query)
        return ": request " + std::to_string(r) + " has " + std::to_string(query) + " tokens in a context of " +
               std::to_string(load.seq_lens[r]) + ": tokens of another ubatch were taken off twice";
      if (query == 0 && load.tokens() > 0 && plan_.execution == Execution::Eager)
        return ": request " + std::to_string(r) + " is padding, but without a graph attention works on the real slice";
    }
    return "";
  }

  const Plan& plan_;
  std::vector<Programs> programs_;
  Findings findings_;
};

}  // namespace

std::string_view failure_name(std::string_view code) {
  for (const auto& [known, name] : kFailures)
    if (known == code) return name;
  throw InternalError("no failure has the code " + std::string(code));
}

std::vector<std::string_view> failure_codes() {
  std::vector<std::string_view> codes;
  for (const auto& failure : kFailures) codes.push_back(failure.first);
  return codes;
}

std::vector<PlanFinding> warnings_or_throw(PlanCheck check) {
  if (check.stops()) throw FindingError(check.findings.front().code + ": " + check.findings.front().text);
  return std::move(check.findings);
}

PlanCheck check_plan(const Plan& plan) {
  return PlanChecker(plan).run();
}

}  // namespace dbo
