// SGLang's options: the rules are those of its server_args.py, of the arg_groups that resolve it and of
// two_batch_overlap.py.
#include <algorithm>

#include "sim/base/error.h"
#include "sim/search/serve_reader.h"
#include "sim/search/serving_flags.h"

namespace dbo {
namespace {

constexpr std::string_view kBackends[] = {"none",       "deepep",  "mooncake",  "nixl", "mori",     "ascend_fuseep",
                                          "flashinfer", "megamoe", "deepep_v2", "pplx", "ascend_tp"};

class SglangReader : ServeReader {
 public:
  using ServeReader::ServeReader;

  FromServe read() {
    const std::vector<std::string_view> names = {"model-path", "model"};
    read_model(command_.model().empty() ? command_.value(names).value_or("") : command_.model());
    read_parallel();
    read_overlap();
    read_all_to_all();
    read_redundant(command_.count({"ep-num-redundant-experts"}).value_or(0), "--ep-num-redundant-experts");
    read_speculation();
    read_graphs();
    read_workload();
    return finish("SGLang", sglang_version(), overlap_);
  }

 private:
  std::int64_t at_least_one(const std::vector<std::string_view>& names) { return positive(names, 65536).value_or(1); }

  /// `tp` is all GPUs of a replica here: attention is cut among tp / dp of them.
  void read_parallel() {
    const std::int64_t gpus = at_least_one({"tp-size", "tensor-parallel-size", "tp"});
    data_ = at_least_one({"dp-size", "data-parallel-size", "dp"});
    const std::int64_t nodes = at_least_one({"nnodes"});
    took(number_text(gpus) + " GPUs (--tp-size)");
    if (const auto experts = command_.count({"ep-size", "expert-parallel-size", "ep"})) {
      if (*experts == gpus)
        took("experts spread over all GPUs (--ep-size)");
      else
        assumed("experts spread over all " + number_text(gpus) + " GPUs, as DeepEP does whatever --ep-size says (" +
                number_text(*experts) + ")");
    }
    if (nodes > 1) took(number_text(nodes) + " nodes (--nnodes)");
    attention_ranks_ = command_.has("enable-dp-attention") && data_ > 1;
    if (!command_.has("enable-dp-attention")) {
      if (data_ > 1 && nodes > 1)
        refused("--dp-size " + number_text(data_) + " over " + number_text(nodes) +
                " nodes without --enable-dp-attention");
      if (data_ > 1)
        assumed("one of its " + number_text(data_) +
                " replicas (--dp-size): without --enable-dp-attention they are apart");
      data_ = 1;
    } else if (gpus % data_ != 0) {
      refused("--tp-size " + number_text(gpus) + " is no multiple of --dp-size " + number_text(data_) +
              " with --enable-dp-attention");
      data_ = gpus;
    } else {
      took(number_text(data_) + " ranks with batches of their own (--dp-size, --enable-dp-attention)");
    }
    tensor_ = static_cast<int>(gpus / data_);
    if (const auto dense = command_.count({"moe-dense-tp-size"}); dense && *dense != 1 && *dense != gpus)
      refused("--moe-dense-tp-size " + number_text(*dense) + ": it is 1 or --tp-size " + number_text(gpus));
    if (gpus % nodes != 0)
      refused("--tp-size " + number_text(gpus) + " is no multiple of --nnodes " + number_text(nodes));
    read_cluster(static_cast<int>(gpus), nodes > 1 && gpus % nodes == 0 ? static_cast<int>(gpus / nodes) : 0);
    if (const auto stages = command_.count({"pp-size", "pipeline-parallel-size", "pp"}); stages && *stages > 1)
      assumed("one pipeline stage: the " + number_text(*stages) + " of --pp-size are not modelled");
  }

  void read_overlap() {
    overlap_.coordination = Coordination::Sglang;
    splits_ = command_.has("enable-two-batch-overlap");
    overlap_.ubatches = splits_ ? 2 : 1;
    took(splits_ ? "2 ubatches (--enable-two-batch-overlap)" : "no splitting (no --enable-two-batch-overlap)");
    if (command_.has("enable-single-batch-overlap"))
      assumed("no overlap within a batch: --enable-single-batch-overlap is not modelled");
    if (const auto share = command_.number({"tbo-token-distribution-threshold"})) {
      if (*share < 0 || *share > 0.5) {
        refused("--tbo-token-distribution-threshold must be 0 to 0.5");
      } else {
        overlap_.token_distribution = *share;
        took("a prompt is cut when its share is below the threshold (--tbo-token-distribution-threshold)");
      }
    }
  }

  Phase read_phase() {
    const std::string mode = command_.value({"disaggregation-mode"}).value_or("null");
    if (mode != "null" && mode != "prefill" && mode != "decode")
      refused("--disaggregation-mode \"" + mode + "\" " + known_names(mode, {"null", "prefill", "decode"}));
    if (hints_.phase) return *hints_.phase;
    if (mode == "prefill" || mode == "decode") {
      phase_said_ = true;
      took("a server for " + mode + " (--disaggregation-mode)");
      return mode == "prefill" ? Phase::Prefill : Phase::Decode;
    }
    return Phase::Decode;
  }

  void read_all_to_all() {
    phase_ = read_phase();
    const bool decode = phase_ == Phase::Decode;
    const bool old_switch = command_.has("enable-deepep-moe");
    const std::string backend = command_.value({"moe-a2a-backend"}).value_or(old_switch ? "deepep" : "none");
    const std::string mode = command_.value({"deepep-mode"}).value_or("auto");
    const bool known = std::find(std::begin(kBackends), std::end(kBackends), backend) != std::end(kBackends);
    if (!known)
      refused("--moe-a2a-backend \"" + backend + "\" " +
              known_names(backend, std::vector<std::string_view>(std::begin(kBackends), std::end(kBackends))));
    if (backend == "none") {
      // Ranks with attention of their own may split without one: they gather and scatter tokens between two batches.
      if (splits_ && !attention_ranks_)
        refused(
            "--enable-two-batch-overlap with --moe-a2a-backend none (its default) and no --enable-dp-attention: "
            "there is nothing to hide");
      assumed(std::string("--moe-a2a-backend deepep: ") +
              (splits_ && attention_ranks_ ? "splitting over none's gather and scatter" : "none") + " is not modelled");
    } else if (backend == "deepep_v2" && (splits_ || command_.has("enable-single-batch-overlap"))) {
      refused("--moe-a2a-backend deepep_v2 with --enable-two-batch-overlap or --enable-single-batch-overlap");
      assumed("all-to-all deepep");
    } else if (backend != "deepep") {
      assumed("all-to-all deepep: " + backend + " is not modelled (--moe-a2a-backend)");
    } else {
      took("all-to-all deepep (--moe-a2a-backend), mode " + mode + " (--deepep-mode)");
    }
    if (mode != "auto" && mode != "normal" && mode != "low_latency")
      refused("--deepep-mode \"" + mode + "\" " + known_names(mode, {"normal", "low_latency", "auto"}));
    const bool normal = mode == "normal" || (mode != "low_latency" && !decode);
    overlap_.transport = normal ? Transport::Ht : Transport::Ll;
    overlap_.schedule = normal ? "sglang-prefill" : "sglang-decode";
    if (decode && normal) assumed("decode over normal DeepEP keeps the order of prefill");
    if (!decode && !normal && splits_) assumed("prompts are never split: --deepep-mode low_latency forbids it");
    if (mode == "normal") normal_only_ = true;
    const Json config = command_.object({"deepep-config"});
    const Json* dispatch = config.find("normal_dispatch");
    const Json* sms = dispatch == nullptr ? nullptr : dispatch->find("num_sms");
    if (sms == nullptr || !sms->is_int() || overlap_.transport != Transport::Ht) return;
    if (sms->as_int() < 2 || sms->as_int() >= gpu_.sms || sms->as_int() % 2 != 0) {
      refused("num_sms " + number_text(sms->as_int()) + " of --deepep-config: DeepEP takes an even number below " +
              number_text(gpu_.sms));
      return;
    }
    overlap_.comm_sms = overlap_.comm_sms_created = static_cast<int>(sms->as_int());
    took(number_text(sms->as_int()) + " SMs for communication (--deepep-config)");
  }

  void read_speculation() {
    constexpr std::int64_t kMostTokens = 1024;
    const auto tokens = positive({"speculative-num-draft-tokens"}, kMostTokens);
    if (!command_.value({"speculative-algorithm"}) || !tokens) return;
    query_ = *tokens;
    took(number_text(*tokens) +
         " tokens a request are verified at once (--speculative-algorithm, --speculative-num-draft-tokens)");
    assumed("the drafter's own steps are not modelled");
  }

  /// The option that turns this phase's graphs off; empty: they are on.
  std::string graphs_off() {
    const bool decode = phase_ == Phase::Decode;
    const std::string phase = decode ? "decode" : "prefill", selector = "cuda-graph-backend-" + phase;
    // As the server has it: the JSON goes before the phase's selector, that before the switches.
    const Json config = command_.object({"cuda-graph-config"});
    const Json* own = config.find(phase);
    const Json* backend = own == nullptr ? nullptr : own->find("backend");
    if (backend != nullptr && backend->is_string())
      return backend->as_string() == "disabled" ? "--cuda-graph-config" : "";
    if (const auto chosen = command_.value({selector})) return *chosen == "disabled" ? "--" + selector : "";
    for (const std::string& off : {"disable-" + phase + "-cuda-graph", std::string("disable-cuda-graph")})
      if (command_.has(off)) return "--" + off;
    return "";
  }

  void read_graphs() {
    const std::string off = graphs_off();
    const bool decode = phase_ == Phase::Decode;
    overlap_.graph = off.empty() && !normal_only_ && (decode || !splits_);
    if (!off.empty())
      took("no CUDA graphs (" + off + ")");
    else if (normal_only_)
      took("no CUDA graphs: --deepep-mode normal turns them off");
    else if (!overlap_.graph)
      took("no CUDA graphs: --enable-two-batch-overlap turns those of prompts off");
    else
      took("CUDA graphs");
    const auto sizes = decode ? command_.values({"cuda-graph-bs-decode", "cuda-graph-bs"})
                              : command_.values({"cuda-graph-bs-prefill", "piecewise-cuda-graph-tokens"});
    if (!overlap_.graph) return;
    if (!sizes) {
      assumed("a graph for every batch");
      return;
    }
    const std::string option =
        decode ? "--cuda-graph-bs-decode, --cuda-graph-bs" : "--cuda-graph-bs-prefill, --piecewise-cuda-graph-tokens";
    for (const std::string& size : *sizes) {
      overlap_.graph_sizes.push_back(graph_size(option, size) * (decode ? query_ : 1));
    }
    took(number_text(static_cast<std::int64_t>(sizes->size())) + " graph sizes (" + option + ")");
  }

  void read_workload() {
    constexpr std::int64_t kAssumedRequests = 128, kAssumedPrefill = 8192;
    ServeWorkload w;
    w.phase = phase_;
    w.phase_said = phase_said_;
    w.query_tokens = query_;
    w.longest = positive({"context-length"}, kMostCount, true).value_or(0);
    w.longest_from = "--context-length";
    if (phase_ == Phase::Decode) {
      const auto requests = positive({"max-running-requests"});
      w.tokens = std::max<std::int64_t>(requests ? *requests / data_ : kAssumedRequests, 1) * query_;
      if (requests) w.tokens_from = "--max-running-requests over " + number_text(data_) + " ranks";
    } else {
      const auto chunk = command_.count({"chunked-prefill-size"});
      const bool chunked = chunk && *chunk > 0;
      // With attention spread over ranks, the chunk is shared out among them.
      w.tokens = chunked ? std::max<std::int64_t>(*chunk / data_, 1) : kAssumedPrefill;
      if (chunked) w.tokens_from = "--chunked-prefill-size over " + number_text(data_) + " ranks";
    }
    set_workload(w);
  }

  ServeOverlap overlap_;
  Phase phase_ = Phase::Decode;
  std::int64_t data_ = 1, query_ = 1;
  bool splits_ = false, normal_only_ = false, phase_said_ = false, attention_ranks_ = false;
};

}  // namespace

FromServe from_sglang(ServeCommand& command, const ServeHints& hints) {
  return SglangReader(command, hints).read();
}

}  // namespace dbo
