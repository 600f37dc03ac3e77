// A plan's happens-before as a graph (Boost.Graph inside): cycles, critical path, and the reduced graph of one layer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/plan/linearise.h"
#include "sim/plan/plan.h"

namespace dbo {

enum class EdgeKind : std::uint8_t {
  Lane,  ///< the op ahead on the same lane
  Wait,  ///< an event wait
  Data,  ///< a send to its receive, on the same or another rank
  Host   ///< the host blocked on the op before it launched the other
};

struct GraphEdge {
  std::uint32_t from = 0, to = 0;  ///< nodes
  EdgeKind kind = EdgeKind::Lane;
};

/// Ops of every class as nodes; comm kernels that all ranks run together are one node a class, joined both ways, since
/// each ends only when all have started.
struct PlanGraph {
  struct Node {
    int class_index = 0;
    std::uint32_t op = 0;  ///< index into that class's Linear::ops
  };
  std::vector<Node> nodes;
  std::vector<GraphEdge> edges;
};

PlanGraph plan_graph(const Plan& plan, const std::vector<Linear>& linear);

/// A shortest cycle among ops that cannot start before each other, as nodes in order; empty when there is none. The two
/// directions between the comm kernels of one call are no cycle: they start together.
std::vector<std::uint32_t> find_cycle(const PlanGraph& graph, const Plan& plan, const std::vector<Linear>& linear);

/// The longest path of one class's graph, `ns` giving the time of each op; the first of equal ones by op index.
std::vector<std::uint32_t> critical_path(const Plan& plan, const Linear& linear, const std::vector<std::int64_t>& ns);

/// Graphviz text of one steady MoE layer: the transitive reduction of its happens-before, with the edges into the layer
/// before and after. Throws InputError when the plan repeats no MoE layer.
std::string layer_dot(const Plan& plan);

}  // namespace dbo
