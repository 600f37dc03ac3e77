#include "sim/cost/flows.h"

#include <algorithm>

namespace dbo {
namespace {

/// Flows of each port, as one array with the places where each port's begin.
struct FlowsOfPorts {
  std::vector<std::size_t> begin, flow;
};

FlowsOfPorts flows_of_ports(const std::vector<Flow>& flows, const std::vector<std::size_t>& open, std::size_t ports) {
  FlowsOfPorts out;
  out.begin.assign(ports + 1, 0);
  for (const std::size_t f : open)
    for (const std::int32_t port : {flows[f].from, flows[f].to}) ++out.begin[static_cast<std::size_t>(port) + 1];
  for (std::size_t p = 0; p < ports; ++p) out.begin[p + 1] += out.begin[p];
  out.flow.resize(open.size() * 2);
  std::vector<std::size_t> next(out.begin.begin(), out.begin.end() - 1);
  for (std::size_t i = 0; i < open.size(); ++i)
    for (const std::int32_t port : {flows[open[i]].from, flows[open[i]].to})
      out.flow[next[static_cast<std::size_t>(port)]++] = i;
  return out;
}

}  // namespace

std::vector<double> fair_rates(const std::vector<Flow>& flows, const std::vector<std::size_t>& open,
                               const std::vector<double>& rates) {
  const std::size_t ports = rates.size();
  const FlowsOfPorts of = flows_of_ports(flows, open, ports);
  std::vector<double> left = rates, given(open.size(), 0);
  std::vector<std::size_t> waiting(ports, 0);
  std::vector<char> fixed(open.size(), 0);
  for (std::size_t p = 0; p < ports; ++p) waiting[p] = rates[p] > 0 ? of.begin[p + 1] - of.begin[p] : 0;
  // The port that gives each of its flows least is full; what they do not use elsewhere is free for others.
  for (;;) {
    std::size_t full = ports;
    double least = 0;
    for (std::size_t p = 0; p < ports; ++p) {
      if (waiting[p] == 0) continue;
      const double fair = std::max(left[p], 0.0) / static_cast<double>(waiting[p]);
      if (full == ports || fair < least) {
        full = p;
        least = fair;
      }
    }
    if (full == ports) return given;
    for (std::size_t i = of.begin[full]; i < of.begin[full + 1]; ++i) {
      const std::size_t flow = of.flow[i];
      if (fixed[flow]) continue;
      fixed[flow] = 1;
      given[flow] = least;
      for (const std::int32_t port : {flows[open[flow]].from, flows[open[flow]].to}) {
        const auto p = static_cast<std::size_t>(port);
        if (rates[p] <= 0) continue;
        left[p] -= least;
        --waiting[p];
      }
    }
  }
}

std::vector<double> flow_ends(const std::vector<Flow>& flows, const std::vector<double>& rates) {
  constexpr double kStep = 1.0 / 512;
  std::vector<double> ends(flows.size(), 0), left(flows.size());
  std::vector<std::size_t> open;
  for (std::size_t f = 0; f < flows.size(); ++f) {
    left[f] = flows[f].bytes;
    const bool limited =
        rates[static_cast<std::size_t>(flows[f].from)] > 0 || rates[static_cast<std::size_t>(flows[f].to)] > 0;
    if (limited && left[f] > 0) open.push_back(f);
  }
  double now = 0;
  while (!open.empty()) {
    const std::vector<double> given = fair_rates(flows, open, rates);
    double first = left[open[0]] / given[0];
    for (std::size_t i = 1; i < open.size(); ++i) first = std::min(first, left[open[i]] / given[i]);
    const double together = first + kStep * (now + first);
    std::vector<std::size_t> still;
    for (std::size_t i = 0; i < open.size(); ++i) {
      const double needed = left[open[i]] / given[i];
      if (needed <= together) {
        ends[open[i]] = now + needed;
      } else {
        left[open[i]] -= given[i] * first;
        still.push_back(open[i]);
      }
    }
    now += first;
    open = std::move(still);
  }
  return ends;
}

}  // namespace dbo
