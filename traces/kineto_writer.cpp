#include "traces/kineto_writer.h"

#include <algorithm>
#include <map>
#include <set>

#include "traces/output_file.h"
#include "traces/overlap.h"
#include "traces/text_out.h"

namespace dbo {
namespace {

constexpr std::int64_t kLaunchNs = 2000, kLaunchEveryNs = 3000;  // of a made-up host call
constexpr std::int64_t kHostPid = 100000;                        // away from device numbers
constexpr std::int64_t kGpuSortIndex = 0x1000000;                // as PyTorch numbers GPU processes
constexpr std::int64_t kSyncRows = 1000000;                      // rows of synchronisation events of a stream

std::string quoted(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

const char* kernel_name(OpKind kind) {
  switch (kind) {
    case OpKind::A0:
      return "dbo::attention_projections";
    case OpKind::A1:
      return "dbo::attention_core";
    case OpKind::D:
      return "dbo::dispatch";
    case OpKind::DSend:
      return "dbo::dispatch_send";
    case OpKind::DRecv:
      return "dbo::dispatch_recv";
    case OpKind::MLP:
      return "dbo::moe_grouped_gemm";
    case OpKind::S:
      return "dbo::shared_expert_gemm";
    case OpKind::C:
      return "dbo::combine";
    case OpKind::CSend:
      return "dbo::combine_send";
    case OpKind::CRecv:
      return "dbo::combine_recv";
    case OpKind::CCopy:
      return "Memcpy DtoD (Device -> Device)";
    case OpKind::FFN:
      return "dbo::dense_ffn_gemm";
    case OpKind::EMB:
      return "dbo::embedding";
    case OpKind::HEAD:
      return "dbo::lm_head_gemm";
    case OpKind::DWire:
    case OpKind::CWire:
    case OpKind::Other:
      break;
  }
  return "dbo::other";
}

/// "dispatch.send" of D.send.
std::string spelled_out(OpKind kind) {
  const std::string_view name = op_name(kind);
  return std::string(is_dispatch(kind) ? "dispatch" : "combine") + std::string(name.substr(1));
}

class Writer {
 public:
  Writer(const Trace& trace, const KinetoOptions& options, TextOut::Sink sink)
      : trace_(trace), options_(options), out_(std::move(sink)) {
    RowFilter filter = options.filter;
    filter.max_ranks = 0;
    rows_ = make_rows(kernels_of_rank(), filter);
    number_kernels();
    choose_syncs();
    place_calls();
  }

  void write() {
    put_head();
    put_names();
    put_step();
    for (const Call& call : calls_) put_call(call);
    for (std::size_t row = 0; row < rows_.rows.size(); ++row) put_row(row);
    for (std::size_t i = 0; i < syncs_.size(); ++i) put_sync(syncs_[i]);
    out_.put("\n],\n\"traceName\": " + quoted("dbo_rank_" + std::to_string(options_.rank) + ".pt.trace.json") +
             "\n}\n");
    out_.flush();
  }

 private:
  struct Call {
    std::string name;
    std::int64_t start = 0;
    std::int64_t correlation = 0;
    bool launches = false;
  };
  struct Sync {
    std::uint32_t from = 0, to = 0;     ///< ops
    std::int64_t record = 0, wait = 0;  ///< correlations of the calls
  };

  const Trace& kernels_of_rank() {
    kernels_.lanes = trace_.lanes;
    kernels_.names = trace_.names;
    std::map<std::uint32_t, std::uint32_t> moved;
    for (std::uint32_t i = 0; i < trace_.ops.size(); ++i) {
      const TraceOp& op = trace_.ops[i];
      if (op.rank != options_.rank || is_wire(op.kind)) continue;
      moved[i] = static_cast<std::uint32_t>(kernels_.ops.size());
      kernels_.ops.push_back(op);
    }
    for (const TraceFlow& flow : trace_.flows) {
      const auto from = moved.find(flow.from), to = moved.find(flow.to);
      if (flow.kind == TraceFlow::Kind::Event && from != moved.end() && to != moved.end())
        kernels_.flows.push_back({flow.kind, from->second, to->second});
    }
    return kernels_;
  }

  std::int64_t start(std::uint32_t op) const { return kernels_.ops[op].start.time_since_epoch().count(); }
  bool shown(std::uint32_t op) const { return rows_.row_of_op[op] != kNoRow; }

  void number_kernels() {
    for (std::uint32_t i = 0; i < kernels_.ops.size(); ++i)
      if (shown(i)) order_.push_back(i);
    std::stable_sort(order_.begin(), order_.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return start(a) < start(b); });
    correlation_.assign(kernels_.ops.size(), 0);
  }

  void choose_syncs() {
    for (const TraceFlow& flow : kernels_.flows)
      if (shown(flow.from) && shown(flow.to) && start(flow.from) <= start(flow.to))
        syncs_.push_back({flow.from, flow.to, 0, 0});
  }

  /// Calls in the order of the kernels they launch: record behind the kernel it marks, wait before the one that waits.
  void place_calls() {
    std::multimap<std::uint32_t, std::size_t> records, waits;
    for (std::size_t i = 0; i < syncs_.size(); ++i) {
      records.emplace(syncs_[i].from, i);
      waits.emplace(syncs_[i].to, i);
    }
    const auto call = [&](const char* name, bool launches) {
      calls_.push_back({name, static_cast<std::int64_t>(calls_.size()) * kLaunchEveryNs,
                        static_cast<std::int64_t>(calls_.size()) + 1, launches});
      return calls_.back().correlation;
    };
    for (const std::uint32_t op : order_) {
      for (auto [at, end] = waits.equal_range(op); at != end; ++at)
        syncs_[at->second].wait = call("cudaStreamWaitEvent", false);
      correlation_[op] = call(kernels_.ops[op].kind == OpKind::CCopy ? "cudaMemcpyAsync" : "cudaLaunchKernel", true);
      shift_ = std::max(shift_, calls_.back().start + kLaunchNs - start(op));
      for (auto [at, end] = records.equal_range(op); at != end; ++at)
        syncs_[at->second].record = call("cudaEventRecord", false);
    }
  }

  /// PyTorch numbers streams as it creates them; the default compute stream is mostly 7.
  static std::int64_t stream_of(const Row& row) { return row.lane == 0 ? 7 : row.lane == 1 ? 16 : 20 + row.lane; }
  /// A spilt row has a number of its own; its kernels still name their stream.
  static std::int64_t tid_of(const Row& row) { return stream_of(row) + 1000 * (row.spill - 1); }

  void put_head() {
    const int world = options_.world_size > 0 ? options_.world_size : static_cast<int>(ranks_of(trace_).size());
    Json metadata = trace_.metadata.is_object() ? trace_.metadata : Json::object();
    if (shift_ > 0) metadata.set("shifted_ns", shift_);
    if (rows_.dropped > 0) metadata.set("dropped_slices", rows_.dropped);
    const auto text = [&](const char* key, const char* otherwise) {
      const Json* value = metadata.find(key);
      return quoted(value != nullptr && value->is_string() ? value->as_string() : otherwise);
    };
    // Tools look for the rank with a pattern that needs the blank behind the colon.
    out_.put("{\n\"schemaVersion\": 1,\n\"deviceProperties\": [{\"id\": " + std::to_string(options_.device) +
             ", \"name\": " + text("device", "unknown") +
             ", \"totalGlobalMem\": 0, \"computeMajor\": 9, \"computeMinor\": 0, \"numSms\": 0}],\n");
    out_.put("\"distributedInfo\": {\"backend\": \"nccl\", \"rank\": " + std::to_string(options_.rank) +
             ", \"world_size\": " + std::to_string(world) + ", \"pg_count\": 1},\n");
    const Json* base = metadata.find("baseTimeNanoseconds");
    out_.put("\"displayTimeUnit\": \"ms\",\n\"baseTimeNanoseconds\": " +
             std::to_string(base != nullptr && base->is_int() ? base->as_int() : 0) +
             ",\n\"metadata\": " + compact_json(metadata) + ",\n\"traceEvents\": [\n");
  }

  void put_event(const std::string& text) {
    out_.put(first_ ? "" : ",\n");
    out_.put(text);
    first_ = false;
  }

  void put_meta(const char* what, std::int64_t pid, std::int64_t tid, const std::string& args) {
    put_event("{\"ph\": \"M\", \"name\": \"" + std::string(what) + "\", \"pid\": " + std::to_string(pid) +
              ", \"tid\": " + std::to_string(tid) + ", \"ts\": 0.000, \"args\": {" + args + "}}");
  }

  void put_names() {
    const std::string gpu = std::to_string(options_.device);
    put_meta("process_name", options_.device, 0, "\"name\": \"dbo\"");
    put_meta("process_labels", options_.device, 0, "\"labels\": \"GPU " + gpu + "\"");
    put_meta("process_sort_index", options_.device, 0,
             "\"sort_index\": " + std::to_string(kGpuSortIndex + options_.device));
    put_meta("process_name", kHostPid, 0, "\"name\": \"dbo\"");
    put_meta("process_labels", kHostPid, 0, "\"labels\": \"CPU\"");
    put_meta("process_sort_index", kHostPid, 0, "\"sort_index\": " + std::to_string(kHostPid));
    put_meta("thread_name", kHostPid, kHostPid, "\"name\": \"thread " + std::to_string(kHostPid) + " (dbo)\"");
    put_meta("thread_sort_index", kHostPid, kHostPid, "\"sort_index\": " + std::to_string(kHostPid));
    std::set<std::int64_t> sync_rows;
    for (const Sync& sync : syncs_) sync_rows.insert(sync_row(sync));
    for (const Row& row : rows_.rows) {
      const std::string number = std::to_string(stream_of(row));
      const std::string spill = row.spill > 1 ? "(" + std::to_string(row.spill) + ") " : "";
      put_meta("thread_name", options_.device, tid_of(row), "\"name\": \"stream " + number + " " + spill + "\"");
      put_meta("thread_sort_index", options_.device, tid_of(row), "\"sort_index\": " + std::to_string(tid_of(row)));
    }
    for (const std::int64_t tid : sync_rows) {
      put_meta("thread_name", options_.device, tid,
               "\"name\": \"stream " + std::to_string(tid - kSyncRows) + " sync\"");
      put_meta("thread_sort_index", options_.device, tid, "\"sort_index\": " + std::to_string(tid));
    }
  }

  void put_step() {
    std::int64_t end = calls_.empty() ? 1000 : calls_.back().start + kLaunchEveryNs;
    for (const std::uint32_t op : order_) end = std::max(end, kernels_.ops[op].end.time_since_epoch().count() + shift_);
    put_event("{\"ph\": \"X\", \"cat\": \"user_annotation\", \"name\": \"ProfilerStep#0\", \"pid\": " +
              std::to_string(kHostPid) + ", \"tid\": " + std::to_string(kHostPid) +
              ", \"ts\": 0.000, \"dur\": " + us_text(end) + ", \"args\": {\"External id\": 0, \"Ev Idx\": 0}}");
  }

  void put_call(const Call& call) {
    const std::string id = std::to_string(call.correlation);
    const std::string place = "\"pid\": " + std::to_string(kHostPid) + ", \"tid\": " + std::to_string(kHostPid);
    put_event("{\"ph\": \"X\", \"cat\": \"cuda_runtime\", \"name\": \"" + call.name + "\", " + place +
              ", \"ts\": " + us_text(call.start) + ", \"dur\": " + us_text(kLaunchNs) +
              ", \"args\": {\"External id\": " + id + ", \"cbid\": 211, \"correlation\": " + id + "}}");
    if (call.launches)
      put_event("{\"ph\": \"s\", \"id\": " + id + ", " + place + ", \"ts\": " + us_text(call.start) +
                ", \"cat\": \"ac2g\", \"name\": \"ac2g\"}");
  }

  std::string name_of(const TraceOp& op) const {
    if (op.kind == OpKind::Other && op.name < trace_.names.size()) return trace_.names[op.name];
    if (!options_.nccl_names || !is_comm(op.kind) || op.kind == OpKind::CCopy) return kernel_name(op.kind);
    std::string name = "ncclDevKernel_AllToAll(" + spelled_out(op.kind) + " ub" + std::to_string(op.ubatch);
    if (op.layer >= 0) name += " L" + std::to_string(op.layer);
    return name + ")";
  }

  void put_row(std::size_t index) {
    const Row& row = rows_.rows[index];
    const std::string stream = std::to_string(stream_of(row));
    for (const std::uint32_t i : row.ops)
      put_kernel(kernels_.ops[i], correlation_[i], stream, std::to_string(tid_of(row)));
  }

  void put_kernel(const TraceOp& op, std::int64_t correlation, const std::string& stream, const std::string& tid) {
    const bool copy = op.kind == OpKind::CCopy;
    const std::string id = std::to_string(correlation), device = std::to_string(options_.device);
    const std::string place = "\"pid\": " + device + ", \"tid\": " + tid;
    const std::string ts = us_text(op.start.time_since_epoch().count() + shift_);
    const std::int64_t dur = (op.end - op.start).count();
    std::string args = "\"External id\": " + id + ", \"queued\": 0, \"device\": " + device +
                       ", \"context\": 1, \"stream\": " + stream + ", \"correlation\": " + id;
    if (copy) {
      args += ", \"bytes\": " + std::to_string(op.bytes);
    } else {
      args += ", \"registers per thread\": 0, \"shared memory\": 0, \"grid\": [" + std::to_string(std::max(1, op.sms)) +
              ", 1, 1], \"block\": [1024, 1, 1]";
      if (is_comm(op.kind))
        args += ", \"Collective name\": \"all_to_allv\", \"dtype\": \"Byte\", \"In msg nelems\": " +
                std::to_string(op.bytes) + ", \"Out msg nelems\": " + std::to_string(op.bytes) +
                ", \"Group size\": " + std::to_string(std::max(options_.world_size, 1)) +
                ", \"Process Group Name\": \"ep\", \"Process Group Description\": \"expert parallel\"";
    }
    // What our own reader joins by; others pass over it.
    args += ", \"op\": \"" + std::string(op_name(op.kind)) + "\", \"layer\": " + std::to_string(op.layer) +
            ", \"ubatch\": " + std::to_string(op.ubatch) + ", \"rank\": " + std::to_string(op.rank) +
            ", \"lane\": " + quoted(op.lane < trace_.lanes.size() ? trace_.lanes[op.lane] : "") +
            ", \"tokens\": " + std::to_string(op.tokens) + ", \"sms\": " + std::to_string(op.sms);
    if (!copy) args += ", \"bytes\": " + std::to_string(op.bytes);
    if (op.plan_op != kNoPlanOp) args += ", \"plan_op\": " + std::to_string(op.plan_op);
    if (is_recv(op.kind)) args += ", \"waited_ns\": " + std::to_string(op.waited.count());
    put_event("{\"ph\": \"X\", \"cat\": \"" + std::string(copy ? "gpu_memcpy" : "kernel") +
              "\", \"name\": " + quoted(name_of(op)) + ", " + place + ", \"ts\": " + ts + ", \"dur\": " + us_text(dur) +
              ", \"args\": {" + args + "}}");
    put_event("{\"ph\": \"f\", \"id\": " + id + ", " + place + ", \"ts\": " + ts +
              ", \"cat\": \"ac2g\", \"name\": \"ac2g\", \"bp\": \"e\"}");
  }

  std::int64_t stream_number(std::uint32_t op) const { return stream_of(rows_.rows[rows_.row_of_op[op]]); }
  std::int64_t sync_row(const Sync& sync) const { return kSyncRows + stream_number(sync.to); }

  void put_sync(const Sync& sync) {
    // From when both sides were there to wait: the recorded kernel's end, at most 1 ns before the waiting one begins.
    const std::int64_t to = start(sync.to) + shift_;
    std::int64_t& busy = sync_busy_[sync_row(sync)];
    const std::int64_t from = std::max(busy, to - 1);
    busy = from + 1;
    put_event(
        "{\"ph\": \"X\", \"cat\": \"cuda_sync\", \"name\": \"Stream Wait Event\", \"pid\": " +
        std::to_string(options_.device) + ", \"tid\": " + std::to_string(sync_row(sync)) +
        ", \"ts\": " + us_text(from) + ", \"dur\": 0.001, \"args\": {\"External id\": " + std::to_string(sync.wait) +
        ", \"cuda_sync_kind\": \"Stream Wait Event\", \"wait_on_stream\": " + std::to_string(stream_number(sync.from)) +
        ", \"wait_on_cuda_event_record_corr_id\": " + std::to_string(sync.record) +
        ", \"wait_on_cuda_event_id\": " + std::to_string(sync.record) +
        ", \"stream\": " + std::to_string(stream_number(sync.to)) + ", \"correlation\": " + std::to_string(sync.wait) +
        ", \"device\": " + std::to_string(options_.device) + ", \"context\": 1}}");
  }

  const Trace& trace_;
  const KinetoOptions& options_;
  Trace kernels_;  ///< of the rank, without wires
  Rows rows_;
  std::vector<std::uint32_t> order_;       ///< shown kernels by start
  std::vector<std::int64_t> correlation_;  ///< by kernel
  std::vector<Call> calls_;
  std::vector<Sync> syncs_;
  std::map<std::int64_t, std::int64_t> sync_busy_;
  std::int64_t shift_ = 0;
  bool first_ = true;
  TextOut out_;
};

}  // namespace

std::string kineto_trace_text(const Trace& trace, const KinetoOptions& options) {
  std::string text;
  Writer(trace, options, [&](std::string_view piece) { text += piece; }).write();
  return text;
}

void write_kineto_trace(const std::string& path, const Trace& trace, const KinetoOptions& options) {
  OutputFile file(path);
  Writer(trace, options, [&](std::string_view piece) { file.write(piece); }).write();
  file.commit();
}

}  // namespace dbo
