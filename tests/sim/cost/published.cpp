#include "tests/sim/cost/published.h"

#include <algorithm>
#include <cmath>

#include "sim/base/error.h"
#include "sim/model/presets.h"

namespace dbo::published {
namespace {

double percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
}

using Row = std::vector<double>;

std::string text(double number) {
  return std::to_string(static_cast<long long>(number));
}

/// A load of `requests` requests, each `query` tokens now and `seq` in all.
UbatchLoad batch_of(int requests, int query, int seq) {
  UbatchLoad load;
  load.token_end = load.padded = static_cast<std::int64_t>(requests) * query;
  load.query_start_loc.push_back(0);
  for (int r = 0; r < requests; ++r) {
    load.query_start_loc.push_back((r + 1) * query);
    load.seq_lens.push_back(seq);
  }
  return load;
}

class Evaluator {
 public:
  Evaluator(const std::string& gpu, const CostFactors& factors) : v3_(model_preset("deepseek-v3")) {
    machine_.gpu = gpu_preset(gpu);
    machine_.fabric = fabric_preset("cx7-400g");
    machine_.factors = &factors;
  }

  double gemm(double m, double k, double n) const {
    KernelWork work;
    work.kind = KernelWork::Kind::Gemm;
    work.m = m;
    work.n = n;
    work.k = k;
    work.precision = Precision::Fp8;
    work.weight_bytes = n * k;
    work.act_bytes = m * k + m * n * 2;
    return us(kernel_time(work, machine_.gpu, factors(), machine_.gpu.sms).seconds);
  }

  OpContext context(const UbatchLoad& load, const std::vector<double>& rows = {}) const {
    OpContext c;
    c.shape = &v3_;
    c.tokens = c.share_tokens = static_cast<double>(load.padded);
    c.attention = attention_load(load, 0);
    c.expert_rows = rows;
    return c;
  }

  /// Sum over the kernels of an op; `skip` names those a table leaves out.
  double op(OpKind kind, const OpContext& c, const std::vector<std::string_view>& skip, int sms = 0) const {
    double sum = 0;
    int kernels = 0;
    for (const TimedKernel& k : timed_kernels(kind, c, machine_, sms > 0 ? sms : machine_.gpu.sms)) {
      if (std::find(skip.begin(), skip.end(), k.work.name) != skip.end()) continue;
      sum += k.time.seconds;
      ++kernels;
    }
    return us(sum + factors().kernel_gap_s * std::max(kernels - 1, 0));
  }

  /// One kernel of an op by name.
  double kernel(OpKind kind, const OpContext& c, std::string_view name, int sms = 0) const {
    // A part of the SMs means that communication runs on the others; means over the trace hold the times in which it
    // waited for peers or did not run: 26.7 of 34.6 ms a layer moved data.
    const double moving = sms < machine_.gpu.sms && sms > 0 ? 0.77 : 0;
    for (const TimedKernel& k : timed_kernels(kind, c, machine_, sms > 0 ? sms : machine_.gpu.sms))
      if (k.work.name == name) return us(k.time.seconds + moving * (k.time.beside_seconds - k.time.seconds));
    throw InternalError("no kernel " + std::string(name));
  }

  double attention_module(const UbatchLoad& load) const {
    OpContext c = context(load);
    c.moe_layer = false;
    return op(OpKind::A0, c, {"add, norm"}) + op(OpKind::A1, c, {"add, norm"});
  }

  /// Dispatch or combine of `tokens` on each of nodes x 8 ranks, uniform over the experts.
  ExchangeTime exchange(bool dispatch, Transport transport, int nodes, int hidden, int top_k, int experts, int sms,
                        double tokens, bool grouped = false) const {
    Plan plan;
    plan.world = {.ranks = nodes * 8, .ranks_per_node = 8};
    plan.shape = v3_;
    plan.shape.hidden = hidden;
    plan.shape.moe.routed_experts = experts;
    plan.shape.moe.top_k = top_k;
    plan.shape.moe.groups = grouped ? 8 : 1;
    plan.shape.moe.group_top_k = grouped ? 4 : 1;
    const std::vector<TokenRange> ranges(static_cast<std::size_t>(nodes) * 8,
                                         TokenRange{0, static_cast<std::int64_t>(tokens)});
    const RoutedLoad load = Router(plan).load(3, ranges, 8);
    const ExchangeSpec spec{.transport = transport,
                            .gpu = &machine_.gpu,
                            .nic_bytes_per_s = machine_.nic_bytes_per_s(),
                            .latency_s = 0,
                            .sms = sms,
                            .near_peers = 7,
                            .far_peers = nodes * 8 - 8};
    const TransportFactors& f = machine_.factors->transport(transport);
    return exchange_time(load.ranks[0], {}, spec, dispatch ? f.dispatch : f.combine,
                         dispatch ? dispatch_bytes(plan.shape) : combine_bytes(plan.shape), dispatch);
  }

  double ll(bool dispatch, int nodes, int hidden, int top_k, int experts, double tokens) const {
    const ExchangeTime t = exchange(dispatch, Transport::Ll, nodes, hidden, top_k, experts, machine_.gpu.sms, tokens);
    return us(t.send + t.wire + t.recv);
  }

  double ht(bool dispatch, int nodes, int hidden, int top_k, int experts, int sms, double tokens,
            bool grouped = false) const {
    return us(exchange(dispatch, Transport::Ht, nodes, hidden, top_k, experts, sms, tokens, grouped).whole);
  }

  const ComputeFactors& factors() const { return machine_.factors->compute; }

 private:
  static double us(double seconds) { return seconds * 1e6; }

  ModelShape v3_;
  MachineSpec machine_;
};

void add_experts(const Evaluator& e, bool masked, const Row& r, std::vector<Point>& out) {
  const std::vector<double> rows(static_cast<std::size_t>(r[0]), r[1]);
  OpContext c = e.context({}, rows);
  c.expert_major = masked;
  const std::string label = text(r[0]) + " experts x " + text(r[1]) + " rows, ";
  out.push_back({label + "gate-up", r[2], e.kernel(OpKind::MLP, c, "gate, up")});
  out.push_back({label + "down", r[3], e.kernel(OpKind::MLP, c, "down")});
}

void add_moe(const Evaluator& e, bool masked, const Row& r, std::vector<Point>& out) {
  const double rows = r[1] * 8 / 256;
  const std::vector<double> experts(static_cast<std::size_t>(256 / r[0]), rows);
  OpContext c = e.context({}, experts);
  c.expert_major = masked;
  c.received = r[1];  // that benchmark holds every token of the group on one GPU
  out.push_back({"EP" + text(r[0]) + ", " + text(r[1]) + " tokens", r[2], e.op(OpKind::MLP, c, {})});
}

void add_row(const Evaluator& e, const std::string& name, const Row& r, std::vector<Point>& out) {
  const auto is = [&](std::string_view prefix) { return name.starts_with(prefix); };
  if (is("dense-gemm")) {
    out.push_back({text(r[0]) + " x " + text(r[1]) + ", " + text(r[2]) + " rows", r[3], e.gemm(r[2], r[0], r[1])});
  } else if (is("masked-gemm") || is("grouped-gemm")) {
    add_experts(e, is("masked"), r, out);
  } else if (is("moe-decode") || is("moe-prefill")) {
    add_moe(e, is("moe-decode"), r, out);
  } else if (is("mla-decode-h800")) {
    const UbatchLoad load = batch_of(static_cast<int>(r[1]), 1, static_cast<int>(r[0]));
    out.push_back({text(r[1]) + " requests of " + text(r[0]), r[2],
                   e.kernel(OpKind::A1, e.context(load), "attention") +
                       e.kernel(OpKind::A1, e.context(load), "attention combine")});
  } else if (is("mla-prefill-h800")) {
    const UbatchLoad load = batch_of(1, static_cast<int>(r[0]), static_cast<int>(r[0]));
    out.push_back({text(r[0]) + " tokens", r[1], e.kernel(OpKind::A1, e.context(load), "attention")});
  } else if (is("mla-decode-module") || is("mla-prefill-module")) {
    const int context = static_cast<int>(r[0]);
    const UbatchLoad load = batch_of(static_cast<int>(r[1]), is("mla-decode") ? 1 : context, context);
    out.push_back({text(r[1]) + " requests of " + text(r[0]), r[2], e.attention_module(load)});
  } else if (is("shared-expert")) {
    out.push_back(
        {text(r[0]) + " tokens", r[1], e.op(OpKind::S, e.context(batch_of(static_cast<int>(r[0]), 1, 1)), {})});
  } else if (is("ll-one-node")) {
    const int h = static_cast<int>(r[0]), k = static_cast<int>(r[1]), experts = static_cast<int>(r[2]);
    const std::string label =
        "hidden " + text(r[0]) + ", top-" + text(r[1]) + " of " + text(r[2]) + ", " + text(r[3]) + " tokens, ";
    out.push_back({label + "dispatch", r[4], e.ll(true, 1, h, k, experts, r[3])});
    out.push_back({label + "combine", r[5], e.ll(false, 1, h, k, experts, r[3])});
  } else if (is("ll-nodes")) {
    const int nodes = static_cast<int>(r[0]);
    const std::string label = text(r[0]) + " nodes, " + text(r[1]) + " tokens, ";
    out.push_back({label + "dispatch", r[2], e.ll(true, nodes, 7168, 8, 256, r[1])});
    out.push_back({label + "combine", r[3], e.ll(false, nodes, 7168, 8, 256, r[1])});
  } else if (is("ht-one-node")) {
    const int h = static_cast<int>(r[0]), k = static_cast<int>(r[1]), experts = static_cast<int>(r[2]);
    const std::string label = "hidden " + text(r[0]) + ", " + text(r[3]) + " SMs, " + text(r[4]) + " tokens, ";
    out.push_back({label + "dispatch", r[5], e.ht(true, 1, h, k, experts, static_cast<int>(r[3]), r[4])});
    out.push_back({label + "combine", r[6], e.ht(false, 1, h, k, experts, static_cast<int>(r[3]), r[4])});
  } else if (is("ht-nodes-h800")) {
    const int nodes = static_cast<int>(r[0]);
    const std::string label = text(r[0]) + " nodes, ";
    out.push_back({label + "dispatch", r[1], e.ht(true, nodes, 7168, 8, 256, 24, 4096, nodes == 8)});
    out.push_back({label + "combine", r[2], e.ht(false, nodes, 7168, 8, 256, 24, 4096, nodes == 8)});
  } else if (is("ht-nodes")) {
    const int nodes = static_cast<int>(r[0]), sms = static_cast<int>(r[1]);
    const std::string label = text(r[0]) + " nodes, " + text(r[1]) + " SMs, " + text(r[2]) + " tokens, ";
    out.push_back({label + "dispatch", r[3] + r[4], e.ht(true, nodes, 7168, 8, 256, sms, r[2])});
    // At 8 nodes the published notify of combine is the skew of the ranks, not work.
    out.push_back({label + "combine", r[5] + (nodes < 8 ? r[6] : 0), e.ht(false, nodes, 7168, 8, 256, sms, r[2])});
  } else {
    throw InternalError("no evaluation for table " + name);
  }
}

/// Kernels of a trace by name: "MLP down", "S gate, up", or of attention; "a + b" is the sum of two.
double trace_kernel(const Evaluator& e, const OpContext& c, std::string name, int sms) {
  if (const auto plus = name.find(" + "); plus != std::string::npos)
    return trace_kernel(e, c, name.substr(0, plus), sms) + trace_kernel(e, c, name.substr(plus + 3), sms);
  if (name.starts_with("MLP ")) return e.kernel(OpKind::MLP, c, name.substr(4), sms);
  if (name.starts_with("S ")) return e.kernel(OpKind::S, c, name.substr(2), sms);
  static const std::vector<std::string_view> kSecondHalf = {
      "attention", "attention combine", "v up", "quantise o", "o", "router", "top-k"};
  const bool second = std::find(kSecondHalf.begin(), kSecondHalf.end(), name) != kSecondHalf.end();
  return e.kernel(second ? OpKind::A1 : OpKind::A0, c, name, sms);
}

void add_trace(const Evaluator& e, const std::string& name, const JsonRef& row, std::vector<Point>& out) {
  const bool decode = name == "deepseek-decode-h800";
  const UbatchLoad load = decode ? batch_of(64, 2, 4096) : batch_of(2, 4096, 4096);
  // EP128: 2 experts of 512 rows. EP32: 9 physical experts, 65,536 rows, 7.27 ranks a token.
  const std::vector<double> rows = decode ? std::vector<double>(2, 512.0) : std::vector<double>(9, 65536 / 9.0);
  OpContext c = e.context(load, rows);
  c.expert_major = decode;
  c.received = 8192 * 7.27;
  const std::string kernel = row.items()[0].string();
  out.push_back({kernel, row.items()[1].number(0, 1e9), trace_kernel(e, c, kernel, decode ? 132 : 108)});
}

}  // namespace

double Table::median_error() const {
  std::vector<double> errors;
  for (const Point& point : points) errors.push_back(std::abs(point.ratio() - 1));
  return percentile(errors, 0.5);
}

double Table::worst_error() const {
  double worst = 0;
  for (const Point& point : points) worst = std::max(worst, std::abs(point.ratio() - 1));
  return worst;
}

double Table::bias() const {
  std::vector<double> ratios;
  for (const Point& point : points) ratios.push_back(point.ratio());
  return percentile(ratios, 0.5) - 1;
}

std::vector<Table> read_tables(const std::string& path, const CostFactors& factors) {
  const JsonRef root(load_json(path));
  ObjectReader file(root);
  std::vector<Table> out;
  for (const JsonRef& ref : file.require("tables").items()) {
    ObjectReader reader(ref);
    Table table;
    table.name = reader.require("name").string();
    table.what = reader.require("what").string();
    table.gpu = reader.require("gpu").string();
    table.source = reader.require("source").string();
    const Evaluator evaluator(table.gpu, factors);
    for (const JsonRef& row : reader.require("rows").items()) {
      if (row.items()[0].value().is_string()) {
        add_trace(evaluator, table.name, row, table.points);
        continue;
      }
      Row numbers;
      for (const JsonRef& number : row.items()) numbers.push_back(number.number(0, 1e9));
      add_row(evaluator, table.name, numbers, table.points);
    }
    out.push_back(std::move(table));
  }
  return out;
}

}  // namespace dbo::published
