#include "sim/plan/plan_graph.h"

#include <algorithm>
#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/strong_components.hpp>
#include <boost/graph/transitive_reduction.hpp>
#include <boost/range/iterator_range.hpp>
#include <map>

#include "sim/base/error.h"
#include "sim/plan/steady.h"

namespace dbo {
namespace {

using Graph = boost::adjacency_list<boost::vecS, boost::vecS, boost::directedS>;

Graph to_boost(std::size_t nodes, const std::vector<GraphEdge>& edges) {
  Graph graph(nodes);
  for (const GraphEdge& edge : edges) boost::add_edge(edge.from, edge.to, graph);
  return graph;
}

/// Edges within one class, as pairs of op indices.
std::vector<GraphEdge> class_edges(const Linear& linear) {
  std::vector<GraphEdge> edges;
  std::vector<std::vector<std::uint32_t>> lane_front(linear.queues.size()), record_front(linear.records.size());
  std::vector<std::vector<EdgeKind>> lane_kind(linear.queues.size());
  std::vector<std::uint32_t> host_front;
  for (const HostStep& step : linear.host) {
    switch (step.verb) {
      case Verb::Record:
        record_front[step.index] = lane_front[linear.records[step.index].lane];
        break;
      case Verb::Wait: {
        const LinearWait& wait = linear.waits[step.index];
        if (wait.record == kNone) break;
        for (const std::uint32_t op : record_front[wait.record]) {
          auto& front = lane_front[wait.lane];
          if (std::find(front.begin(), front.end(), op) != front.end()) continue;
          front.push_back(op);
          lane_kind[wait.lane].push_back(EdgeKind::Wait);
        }
        break;
      }
      case Verb::HostWait:
        host_front.push_back(step.index);
        break;
      case Verb::Launch: {
        const LinearOp& op = linear.ops[step.index];
        auto& front = lane_front[op.lane];
        for (std::size_t i = 0; i < front.size(); ++i) edges.push_back({front[i], step.index, lane_kind[op.lane][i]});
        for (const std::uint32_t before : host_front)
          if (std::find(front.begin(), front.end(), before) == front.end())
            edges.push_back({before, step.index, EdgeKind::Host});
        if (op.pair != kNone && op.pair < step.index) edges.push_back({op.pair, step.index, EdgeKind::Data});
        front.assign(1, step.index);
        lane_kind[op.lane].assign(1, EdgeKind::Lane);
        break;
      }
      case Verb::Yield:
      case Verb::Hook:
      case Verb::RunHook:
      case Verb::Exit:
      case Verb::Repeat:
      case Verb::Block:
        break;
    }
  }
  return edges;
}

struct CallKey {
  bool dispatch;
  int ubatch;
  std::int32_t layer;
  auto operator<=>(const CallKey&) const = default;
};

const char* edge_style(EdgeKind kind) {
  switch (kind) {
    case EdgeKind::Lane:
      return "";
    case EdgeKind::Wait:
      return " [style=dashed]";
    case EdgeKind::Data:
      return " [style=bold]";
    case EdgeKind::Host:
      return " [style=dotted]";
  }
  return "";
}

}  // namespace

PlanGraph plan_graph(const Plan& plan, const std::vector<Linear>& linear) {
  PlanGraph graph;
  std::vector<std::uint32_t> base;
  std::map<CallKey, std::vector<std::uint32_t>> senders, receivers;
  for (std::size_t c = 0; c < linear.size(); ++c) {
    base.push_back(static_cast<std::uint32_t>(graph.nodes.size()));
    for (std::uint32_t i = 0; i < linear[c].ops.size(); ++i) {
      const LinearOp& op = linear[c].ops[i];
      const OpKind kind = plan.ops[op.op].kind;
      const auto node = static_cast<std::uint32_t>(graph.nodes.size());
      graph.nodes.push_back({static_cast<int>(c), i});
      const CallKey key{is_dispatch(kind), op.ubatch, op.layer};
      if (is_send(kind) || is_collective(kind)) senders[key].push_back(node);
      if (is_recv(kind) || is_collective(kind)) receivers[key].push_back(node);
    }
    for (const GraphEdge& edge : class_edges(linear[c]))
      graph.edges.push_back({base[c] + edge.from, base[c] + edge.to, edge.kind});
  }
  for (const auto& [key, to] : receivers) {
    const auto from = senders.find(key);
    if (from == senders.end()) continue;
    for (const std::uint32_t a : from->second)
      for (const std::uint32_t b : to)
        if (graph.nodes[a].class_index != graph.nodes[b].class_index) graph.edges.push_back({a, b, EdgeKind::Data});
  }
  return graph;
}

std::vector<std::uint32_t> find_cycle(const PlanGraph& graph, const Plan& plan, const std::vector<Linear>& linear) {
  // Comm kernels of one call are merged into one node: they start together, which is no cycle by itself.
  std::map<CallKey, std::uint32_t> call_node;
  std::vector<std::uint32_t> merged(graph.nodes.size());
  std::vector<std::uint32_t> member;  // one original node of each merged one
  for (std::uint32_t n = 0; n < graph.nodes.size(); ++n) {
    const LinearOp& op = linear[static_cast<std::size_t>(graph.nodes[n].class_index)].ops[graph.nodes[n].op];
    const OpKind kind = plan.ops[op.op].kind;
    if (is_collective(kind)) {
      const auto [entry, fresh] =
          call_node.emplace(CallKey{is_dispatch(kind), op.ubatch, op.layer}, static_cast<std::uint32_t>(member.size()));
      merged[n] = entry->second;
      if (fresh) member.push_back(n);
    } else {
      merged[n] = static_cast<std::uint32_t>(member.size());
      member.push_back(n);
    }
  }
  std::vector<GraphEdge> edges;
  for (const GraphEdge& edge : graph.edges)
    if (merged[edge.from] != merged[edge.to]) edges.push_back({merged[edge.from], merged[edge.to], edge.kind});
  const Graph boost_graph = to_boost(member.size(), edges);
  std::vector<int> component(member.size());
  const int components = boost::strong_components(
      boost_graph, boost::make_iterator_property_map(component.begin(), boost::get(boost::vertex_index, boost_graph)));
  std::vector<int> size(static_cast<std::size_t>(components), 0);
  for (const int c : component) ++size[static_cast<std::size_t>(c)];
  for (std::uint32_t start = 0; start < member.size(); ++start) {
    if (size[static_cast<std::size_t>(component[start])] < 2) continue;
    // Shortest way back to the first node of the component.
    std::vector<std::uint32_t> before(member.size(), kNone), queue{start};
    for (std::size_t at = 0; at < queue.size(); ++at) {
      const std::uint32_t n = queue[at];
      for (const auto edge : boost::make_iterator_range(boost::out_edges(n, boost_graph))) {
        const auto next = static_cast<std::uint32_t>(boost::target(edge, boost_graph));
        if (next == start) {
          std::vector<std::uint32_t> cycle;
          for (std::uint32_t walk = n; walk != start; walk = before[walk]) cycle.push_back(member[walk]);
          cycle.push_back(member[start]);
          std::reverse(cycle.begin(), cycle.end());
          return cycle;
        }
        if (before[next] == kNone && next != start) {
          before[next] = n;
          queue.push_back(next);
        }
      }
    }
  }
  return {};
}

std::vector<std::uint32_t> critical_path(const Plan&, const Linear& linear, const std::vector<std::int64_t>& ns) {
  const std::vector<GraphEdge> edges = class_edges(linear);
  std::vector<std::int64_t> end(linear.ops.size(), 0);
  std::vector<std::uint32_t> before(linear.ops.size(), kNone);
  std::vector<std::vector<std::uint32_t>> into(linear.ops.size());
  for (const GraphEdge& edge : edges) into[edge.to].push_back(edge.from);
  // Launch order is a topological order: every edge goes from an earlier launch to a later one.
  std::uint32_t last = kNone;
  for (std::uint32_t op = 0; op < linear.ops.size(); ++op) {
    for (const std::uint32_t from : into[op])
      if (end[from] > end[op]) {
        end[op] = end[from];
        before[op] = from;
      }
    end[op] += ns[op];
    if (last == kNone || end[op] > end[last]) last = op;
  }
  std::vector<std::uint32_t> path;
  for (std::uint32_t op = last; op != kNone; op = before[op]) path.push_back(op);
  std::reverse(path.begin(), path.end());
  return path;
}

std::string layer_dot(const Plan& plan) {
  const auto block = moe_block(plan, 0);
  if (!block) throw InputError("the plan repeats no MoE layer, so there is no steady layer to draw");
  const Plan longer = with_moe_iterations(plan, 8);
  const Linear linear = linearise(longer, 0);
  std::int32_t first = INT32_MAX;
  for (const LayerMark& mark : linear.marks)
    if (mark.block == *block) first = std::min(first, mark.layer);
  const int stride = moe_stride(plan, 0);
  const std::int32_t begin = first + 4 * stride, end = begin + stride;
  // The layer's ops and what is one edge away on both sides.
  const std::vector<GraphEdge> edges = class_edges(linear);
  std::vector<std::uint32_t> index(linear.ops.size(), kNone), ops;
  const auto in_layer = [&](std::uint32_t op) { return linear.ops[op].layer >= begin && linear.ops[op].layer < end; };
  const auto take = [&](std::uint32_t op) {
    if (index[op] != kNone) return;
    index[op] = static_cast<std::uint32_t>(ops.size());
    ops.push_back(op);
  };
  for (const GraphEdge& edge : edges) {
    if (!in_layer(edge.from) && !in_layer(edge.to)) continue;
    take(edge.from);
    take(edge.to);
  }
  Graph graph(ops.size());
  std::map<std::pair<std::uint32_t, std::uint32_t>, EdgeKind> kinds;
  for (const GraphEdge& edge : edges) {
    if (index[edge.from] == kNone || index[edge.to] == kNone) continue;
    boost::add_edge(index[edge.from], index[edge.to], graph);
    kinds.emplace(std::pair(index[edge.from], index[edge.to]), edge.kind);
  }
  Graph reduced;
  std::vector<Graph::vertex_descriptor> map_to(ops.size());
  std::vector<std::size_t> ids(ops.size());
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = i;
  boost::transitive_reduction(graph, reduced,
                              boost::make_iterator_property_map(map_to.begin(), boost::get(boost::vertex_index, graph)),
                              ids.data());
  std::string text = "digraph layer {\n  rankdir=LR;\n  node [shape=box, fontname=\"sans-serif\"];\n";
  for (std::uint32_t i = 0; i < ops.size(); ++i) {
    const LinearOp& op = linear.ops[ops[i]];
    const std::int32_t relative = op.layer - begin;
    std::string label = plan.ops[op.op].name + " [" + std::to_string(op.ubatch) + "]";
    for (std::int32_t l = stride; l <= relative; l += stride) label += "'";
    text += "  n" + std::to_string(i) + " [label=\"" + label + "\"";
    if (!in_layer(ops[i])) text += ", style=dotted";
    text += op.lane == kComputeLane ? "" : ", color=blue";
    text += "];\n";
  }
  std::vector<std::pair<std::uint32_t, std::uint32_t>> kept;
  std::vector<std::uint32_t> original(ops.size());
  for (std::uint32_t i = 0; i < ops.size(); ++i) original[map_to[i]] = i;
  for (const auto edge : boost::make_iterator_range(boost::edges(reduced)))
    kept.emplace_back(original[boost::source(edge, reduced)], original[boost::target(edge, reduced)]);
  std::sort(kept.begin(), kept.end());
  for (const auto& [from, to] : kept)
    text += "  n" + std::to_string(from) + " -> n" + std::to_string(to) + edge_style(kinds.at({from, to})) + ";\n";
  return text + "}\n";
}

}  // namespace dbo
