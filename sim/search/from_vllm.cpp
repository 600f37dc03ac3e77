// vLLM's options: the rules are those of its config/parallel.py, config/vllm.py and of the runners that read them.
#include <algorithm>

#include "sim/base/error.h"
#include "sim/search/serve_reader.h"
#include "sim/search/serving_flags.h"

namespace dbo {
namespace {

constexpr std::string_view kBackends[] = {"naive",
                                          "pplx",
                                          "deepep_high_throughput",
                                          "deepep_low_latency",
                                          "deepep_v2",
                                          "mori_high_throughput",
                                          "mori_low_latency",
                                          "nixl_ep",
                                          "allgather_reducescatter",
                                          "flashinfer_all2allv",
                                          "flashinfer_nvlink_two_sided",
                                          "flashinfer_nvlink_one_sided"};

class VllmReader : ServeReader {
 public:
  using ServeReader::ServeReader;

  FromServe read() {
    read_model(command_.model().empty() ? command_.value({"model"}).value_or("") : command_.model());
    read_parallel();
    read_ubatches();
    read_backend();
    read_thresholds();
    read_comm_sms();
    read_speculation();
    read_experts();
    read_graphs();
    read_workload();
    if (command_.environment("VLLM_USE_V2_MODEL_RUNNER") == "1") {
      overlap_.coordination = Coordination::Mrv2;
      took("decisions of the second model runner (VLLM_USE_V2_MODEL_RUNNER)");
    } else {
      assumed("decisions of the first model runner");
    }
    return finish("vLLM", vllm_version(), overlap_);
  }

 private:
  std::int64_t at_least_one(const std::vector<std::string_view>& names) { return positive(names, 65536).value_or(1); }

  void read_parallel() {
    data_ = at_least_one({"data-parallel-size", "dp"});
    tensor_ = static_cast<int>(at_least_one({"tensor-parallel-size", "tp"}));
    const std::int64_t local = command_.count({"data-parallel-size-local", "dpl"}).value_or(0);
    took(number_text(data_) + " data-parallel ranks (--data-parallel-size)");
    if (tensor_ > 1 || command_.count({"tensor-parallel-size", "tp"}))
      took(number_text(tensor_) + (tensor_ > 1 ? " GPUs" : " GPU") + " a rank (--tensor-parallel-size)");
    if (command_.has_one_of({"enable-expert-parallel", "ep"}))
      took("experts spread over all ranks (--enable-expert-parallel)");
    if (local > data_)
      refused("--data-parallel-size-local " + number_text(local) + " is more than --data-parallel-size " +
              number_text(data_));
    if (const auto stages = command_.count({"pipeline-parallel-size", "pp"}); stages && *stages > 1)
      assumed("one pipeline stage: the " + number_text(*stages) + " of --pipeline-parallel-size are not modelled");
    if (const auto rank = command_.count({"data-parallel-rank", "dpn"}); rank && (*rank < 0 || *rank >= data_))
      refused("--data-parallel-rank " + number_text(*rank) + " is not below --data-parallel-size " +
              number_text(data_));
    read_context_parallel();
    const bool says_nodes = local > 0 && local < data_ && data_ % local == 0;
    if (says_nodes) took("nodes of " + number_text(local * tensor_) + " GPUs (--data-parallel-size-local)");
    read_cluster(static_cast<int>(data_ * tensor_), says_nodes ? static_cast<int>(local * tensor_) : 0);
    if (!command_.has_one_of({"enable-expert-parallel", "ep"}))
      assumed("--enable-expert-parallel: without it experts are not spread over ranks, and there is no all-to-all");
  }

  void read_context_parallel() {
    const std::int64_t prefill = at_least_one({"prefill-context-parallel-size", "pcp"});
    const std::int64_t decode = at_least_one({"decode-context-parallel-size", "dcp"});
    if (prefill > 1 && data_ > 1)
      refused("--prefill-context-parallel-size " + number_text(prefill) + " with data-parallel ranks");
    else if (prefill == 1 && tensor_ % decode != 0)
      refused("--tensor-parallel-size " + number_text(tensor_) + " is no multiple of --decode-context-parallel-size " +
              number_text(decode));
    if (prefill > 1 || decode > 1)
      assumed(
          "each context whole on its rank: --prefill-context-parallel-size and --decode-context-parallel-size "
          "are not modelled");
  }

  void read_ubatches() {
    dbo_ = command_.has("enable-dbo");
    const std::int64_t size = command_.count({"ubatch-size"}).value_or(0);
    if (dbo_) {
      overlap_.ubatches = 2;
      took(std::string("2 ubatches (--enable-dbo") + (size > 0 ? "; --ubatch-size is ignored beside it)" : ")"));
    } else if (size > 1) {
      overlap_.ubatches = static_cast<int>(std::min<std::int64_t>(size, 64));
      took(number_text(overlap_.ubatches) + " ubatches (--ubatch-size)");
    } else {
      took("no splitting (neither --enable-dbo nor --ubatch-size above 1)");
    }
    if (size < 0) refused("--ubatch-size must be 0 or more, is " + number_text(size));
    if (overlap_.ubatches > 1 && data_ == 1) assumed("nothing is ever split: that takes --data-parallel-size above 1");
  }

  bool splits() const { return overlap_.ubatches > 1; }

  void read_backend() {
    const auto given = command_.value({"all2all-backend"});
    const auto variable = command_.environment("VLLM_ALL2ALL_BACKEND");
    std::string backend = given ? *given : variable.value_or("allgather_reducescatter");
    const std::string from = given ? "--all2all-backend" : variable ? "VLLM_ALL2ALL_BACKEND" : "its default";
    const bool known = std::find(std::begin(kBackends), std::end(kBackends), backend) != std::end(kBackends);
    if (variable)
      assumed(given ? "--all2all-backend goes before VLLM_ALL2ALL_BACKEND"
                    : "a version that reads VLLM_ALL2ALL_BACKEND: later ones know --all2all-backend alone");
    if (!known)
      refused("all-to-all backend \"" + backend + "\" " +
              known_names(backend, std::vector<std::string_view>(std::begin(kBackends), std::end(kBackends))));
    std::string said = backend + " (" + from + ")";
    if (backend == "naive" || backend == "pplx") {
      backend = "allgather_reducescatter";  // with a warning
      said += ", which falls back to " + backend;
    }
    const bool high_throughput = backend == "deepep_high_throughput";
    if (high_throughput || backend == "deepep_low_latency") {
      took("all-to-all " + backend + " (" + from + ")");
    } else if (backend == "nixl_ep") {
      took("all-to-all nixl_ep (" + from + ")");
      assumed("nixl_ep takes as long as DeepEP's low latency");
    } else {
      if (splits() && known)
        refused("all-to-all backend " + said + ": ubatches need deepep_low_latency, deepep_high_throughput or nixl_ep");
      assumed("all-to-all deepep_low_latency: " + said + " is not modelled");
    }
    overlap_.transport = high_throughput ? Transport::Ht : Transport::Ll;
    overlap_.schedule = high_throughput ? "vllm-ht" : "vllm-ll";
    if (splits() && transport_info(overlap_.transport).handle_slots > 0 &&
        overlap_.ubatches > transport_info(overlap_.transport).handle_slots) {
      refused(number_text(overlap_.ubatches) + " ubatches: its all-to-all keeps " +
              number_text(transport_info(overlap_.transport).handle_slots) + " handles, and the next has none");
      overlap_.ubatches = transport_info(overlap_.transport).handle_slots;
    }
  }

  void read_thresholds() {
    const auto read = [&](const char* name, std::int64_t& threshold) {
      if (const auto value = command_.count({name})) {
        threshold = *value;
        took("threshold " + number_text(*value) + " (--" + name + ")");
      }
      if (!splits() || threshold >= overlap_.ubatches) return;
      refused("--" + std::string(name) + " " + number_text(threshold) + " is below the " +
              number_text(overlap_.ubatches) + " ubatches (config/parallel.py at 00193b82 still lets it pass)");
      threshold = overlap_.ubatches;
    };
    read("dbo-decode-token-threshold", overlap_.decode_threshold);
    read("dbo-prefill-token-threshold", overlap_.prefill_threshold);
    overlap_.decode_threshold = std::max<std::int64_t>(overlap_.decode_threshold, 1);
    overlap_.prefill_threshold = std::max<std::int64_t>(overlap_.prefill_threshold, 1);
  }

  void read_comm_sms() {
    const auto text = command_.environment("VLLM_DBO_COMM_SMS");
    if (!text) return;
    if (text->empty() || text->size() > 6 || text->find_first_not_of("0123456789") != std::string::npos) {
      refused("VLLM_DBO_COMM_SMS=" + *text + " is no whole number");
      return;
    }
    const int sms = std::stoi(*text);
    if (overlap_.transport == Transport::Ll) {
      took("no SMs set aside: low latency needs none, whatever VLLM_DBO_COMM_SMS says");
      return;
    }
    if (sms >= gpu_.sms) {
      refused("VLLM_DBO_COMM_SMS=" + *text + " leaves none of the " + number_text(gpu_.sms) + " SMs of " + gpu_.name);
    } else if (sms < overlap_.comm_sms_created && sms % 2 != 0) {
      refused("VLLM_DBO_COMM_SMS=" + *text + " is odd: DeepEP takes an even number");
    } else {
      overlap_.comm_sms = sms;
      took(*text + " SMs for communication (VLLM_DBO_COMM_SMS)");
      if (sms > overlap_.comm_sms_created)
        assumed("DeepEP was created with 20 SMs: the other " + number_text(sms - 20) + " idle");
    }
  }

  void read_speculation() {
    const Json spec = command_.object({"speculative-config", "sc"});
    const Json* drafts = spec.find("num_speculative_tokens");
    if (drafts != nullptr && drafts->is_int() && drafts->as_int() < 1)
      refused("num_speculative_tokens " + number_text(drafts->as_int()) + " of --speculative-config is not from 1 on");
    if (drafts == nullptr || !drafts->is_int() || drafts->as_int() < 1) return;
    constexpr std::int64_t kMostDrafts = 1023;
    if (drafts->as_int() > kMostDrafts)
      throw InputError("--speculative-config: num_speculative_tokens must be at most " + number_text(kMostDrafts) +
                       ", is " + number_text(drafts->as_int()));
    query_ = 1 + drafts->as_int();
    took(number_text(drafts->as_int()) + " draft tokens (--speculative-config)");
    assumed("the drafter's own steps are not modelled");
  }

  void read_experts() {
    const bool balances = command_.has("enable-eplb");
    const Json eplb = command_.object({"eplb-config"});
    std::int64_t redundant = command_.count({"num-redundant-experts"}).value_or(0);
    if (const Json* value = eplb.find("num_redundant_experts"); value != nullptr && value->is_int()) {
      redundant = value->as_int();
      if (redundant < 0)
        refused("num_redundant_experts " + number_text(redundant) + " of --eplb-config is not from 0 on");
    }
    if (balances && !command_.has_one_of({"enable-expert-parallel", "ep"}))
      refused("--enable-eplb without --enable-expert-parallel");
    if (redundant > 0 && !balances) refused(number_text(redundant) + " redundant experts without --enable-eplb");
    read_redundant(redundant, command_.value({"num-redundant-experts"}) ? "--enable-eplb, --num-redundant-experts"
                                                                        : "--enable-eplb, --eplb-config");
  }

  void read_graphs() {
    const bool eager = command_.has("enforce-eager");
    const std::optional<std::int64_t> level = optimization_level();
    const Json compilation = command_.object(level ? std::vector<std::string_view>{"compilation-config", "cc"}
                                                   : std::vector<std::string_view>{"compilation-config", "cc", "O"});
    // Without compilation (level 0) there is nothing that piecewise graphs could be of; --enforce-eager goes before
    // all.
    std::string mode = eager || level == 0 ? "NONE" : "FULL_AND_PIECEWISE";
    if (const Json* value = compilation.find("cudagraph_mode"); value != nullptr && value->is_string() && !eager)
      mode = upper(value->as_string());
    if (level) took("optimization level " + number_text(*level) + " (--optimization-level, -O)");
    if (overlap_.transport == Transport::Ht && data_ > 1 && mode != "NONE") {
      mode = "NONE";
      took("no CUDA graphs: deepep_high_throughput turns them off");
    } else {
      took("CUDA graphs " + mode +
           (eager                           ? " (--enforce-eager)"
            : compilation.members().empty() ? ""
                                            : " (--compilation-config)"));
    }
    // A step that is split has a graph of its own only where whole steps are captured.
    overlap_.graph = mode.starts_with("FULL");
    if (!overlap_.graph) return;
    std::vector<std::int64_t>& sizes = overlap_.graph_sizes;
    const Json* listed = compilation.find("cudagraph_capture_sizes");
    if (const auto values = command_.values({"cudagraph-capture-sizes", "cuda-graph-sizes"})) {
      for (const std::string& value : *values) sizes.push_back(graph_size("--cudagraph-capture-sizes", value));
    } else if (listed != nullptr && listed->is_array()) {
      for (const Json& item : listed->items())
        if (item.is_int()) sizes.push_back(item.as_int());
    } else {
      const auto listed_requests = positive({"max-num-seqs"});
      const auto capped = positive({"max-cudagraph-capture-size"});
      const std::int64_t requests = listed_requests.value_or(kAssumedRequests);
      std::int64_t most = std::min<std::int64_t>(2 * requests * query_, 512);
      if (capped) most = *capped;
      for (const std::int64_t size : {1, 2, 4})
        if (size <= most) sizes.push_back(size);
      for (std::int64_t size = 8; size <= most; size += size < 256 ? 8 : 16) sizes.push_back(size);
      assumed("graphs of its default sizes, up to " + number_text(most) + " tokens" +
              (capped            ? " (--max-cudagraph-capture-size)"
               : listed_requests ? " (--max-num-seqs)"
                                 : ""));
      return;
    }
    std::sort(sizes.begin(), sizes.end());
    sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
    took(number_text(static_cast<std::int64_t>(sizes.size())) + " graph sizes up to " +
         number_text(sizes.empty() ? 0 : sizes.back()) +
         (command_.value({"cudagraph-capture-sizes", "cuda-graph-sizes"}) ? " (--cudagraph-capture-sizes)"
                                                                          : " (--compilation-config)"));
  }

  static std::string upper(std::string text) {
    for (char& c : text) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    return text;
  }

  /// "-O2" and "--optimization-level 2"; older versions have a compilation config behind -O.
  std::optional<std::int64_t> optimization_level() {
    const std::vector<std::string_view> names = {"optimization-level", "O"};
    const auto text = command_.value(names);
    if (!text || text->size() != 1 || text->front() < '0' || text->front() > '9') return std::nullopt;
    if (text->front() > '3') refused("-O" + *text + ": --optimization-level is from 0 to 3");
    return std::min<std::int64_t>(text->front() - '0', 3);
  }

  void read_workload() {
    ServeWorkload w;
    w.phase = hints_.phase.value_or(overlap_.transport == Transport::Ht ? Phase::Prefill : Phase::Decode);
    w.query_tokens = query_;
    w.longest = max_model_len();
    w.longest_from = "--max-model-len";
    const auto requests = positive({"max-num-seqs"});
    const auto budget = positive({"max-num-batched-tokens"}, kMostCount, true);
    if (w.phase == Phase::Decode) {
      w.tokens = requests.value_or(kAssumedRequests) * query_;
      if (requests) w.tokens_from = "--max-num-seqs";
      if (budget && *budget < w.tokens) {
        w.tokens = std::max<std::int64_t>(*budget / query_, 1) * query_;
        w.tokens_from = "--max-num-batched-tokens";
      } else if (budget) {
        took("steps within " + number_text(*budget) + " tokens (--max-num-batched-tokens)");
      }
    } else {
      w.tokens = budget.value_or(kAssumedPrefill);
      if (budget) w.tokens_from = "--max-num-batched-tokens";
    }
    set_workload(w);
  }

  /// 0: not said, or found by the server itself.
  std::int64_t max_model_len() {
    const auto text = command_.value({"max-model-len"});
    if (!text || *text == "auto" || *text == "-1") return 0;
    return positive({"max-model-len"}, kMostCount, true).value_or(0);
  }

  static constexpr std::int64_t kAssumedRequests = 128, kAssumedPrefill = 8192;

  ServeOverlap overlap_;
  std::int64_t data_ = 1, query_ = 1;
  bool dbo_ = false;
};

}  // namespace

FromServe from_vllm(ServeCommand& command, const ServeHints& hints) {
  return VllmReader(command, hints).read();
}

}  // namespace dbo
