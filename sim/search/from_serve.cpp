#include "sim/search/from_serve.h"

#include <algorithm>
#include <filesystem>

#include "sim/base/error.h"
#include "sim/model/presets.h"
#include "sim/search/serve_reader.h"

namespace dbo {
std::string number_text(std::int64_t value) {
  return std::to_string(value);
}

std::optional<std::int64_t> ServeReader::positive(const std::vector<std::string_view>& names, std::int64_t most,
                                                  bool readable) {
  const auto value = readable ? command_.readable_count(names) : command_.count(names);
  if (value && (*value < 1 || *value > most))
    throw InputError("--" + std::string(names.front()) + ": must be from 1 to " + number_text(most) + ", is " +
                     number_text(*value));
  return value;
}

std::int64_t ServeReader::graph_size(const std::string& option, const std::string& text) {
  const bool digits = !text.empty() && text.size() <= 9 && text.find_first_not_of("0123456789") == std::string::npos;
  if (!digits || std::stoll(text) < 1)
    throw InputError(option + ": must be whole numbers from 1, has \"" + text + "\"");
  return std::stoll(text);
}

void ServeReader::read_model(const std::string& name) {
  const std::string& wanted = hints_.model.empty() ? name : hints_.model;
  if (wanted.empty())
    throw InputError(
        "the command names no model: name it in the command (vllm serve MODEL, --model-path MODEL), or with --model");
  const std::string folder_config = wanted + "/config.json";
  std::error_code none;
  if (std::filesystem::is_regular_file(wanted, none) || std::filesystem::is_regular_file(folder_config, none)) {
    const std::string file = std::filesystem::is_regular_file(wanted, none) ? wanted : folder_config;
    model_json_ = Json(Json::Object{{"hf_config", std::filesystem::absolute(file).string()}});
    took("model " + file);
    model_ = model_from_hf(file);
    read_precision(wanted);
    return;
  }
  const auto preset = preset_of_model(wanted);
  if (!preset)
    throw InputError("no preset fits the model \"" + wanted + "\": name one, or a folder with its config.json, with " +
                     "--model " + known_names(wanted, model_names()));
  model_json_ = *preset;
  model_ = model_preset(*preset);
  took("model " + *preset + (hints_.model.empty() ? " (" + name + ")" : ""));
  read_precision(name.empty() ? wanted : name);
}

void ServeReader::set_precision(const char* key, Precision value) {
  const std::string_view name(key);
  const Precision now = name == "weights"          ? model_.weights
                        : name == "expert_weights" ? model_.expert_weights
                        : name == "dispatch"       ? model_.dispatch
                                                   : model_.kv_cache;
  // "weights" sets the experts' too.
  if (now == value && (name != "weights" || model_.expert_weights == value)) return;
  precision_json_.set(key, precision_name(value));
}

/// False when the word names no quantisation that a config has.
bool ServeReader::read_quantization(std::string_view word, const std::string& from) {
  const auto has = [&](std::string_view part) { return word.find(part) != std::string_view::npos; };
  if (has("fp4")) {
    // Fp4 experts take wider activations, and the rest of the model stays as it was.
    set_precision("expert_weights", Precision::Fp4);
    took("fp4 expert weights (" + from + ")");
  } else if (has("fp8") || word == "modelopt") {
    set_precision("weights", Precision::Fp8);
    set_precision("dispatch", Precision::Fp8);
    took("fp8 weights and dispatched tokens (" + from + ")");
  } else if (has("bf16") || has("bfloat16")) {
    set_precision("weights", Precision::Bf16);
    set_precision("dispatch", Precision::Bf16);
    took("bf16 weights and dispatched tokens (" + from + ")");
  } else {
    return false;
  }
  return true;
}

void ServeReader::read_precision(const std::string& name) {
  const auto method = command_.value({"quantization", "q"});
  const std::string checkpoint = lower_case(name.substr(name.rfind('/') + 1));
  bool known = method && read_quantization(lower_case(*method), "--quantization " + *method);
  // A folder's config.json has said so already.
  if (!known && model_json_.is_string()) {
    for (std::size_t begin = 0; begin < checkpoint.size() && !known;) {
      const std::size_t end = std::min(checkpoint.find_first_of("-_.", begin), checkpoint.size());
      known = read_quantization(std::string_view(checkpoint).substr(begin, end - begin), "the name " + name);
      begin = end + 1;
    }
  }
  const std::string as_it_is = std::string(precision_name(model_.weights)) + " weights";
  if (method && !known) assumed(as_it_is + ": --quantization " + *method + " is not modelled");
  if (!method && !known && model_json_.is_string())
    for (const char* word : {"awq", "gptq", "int4", "int8", "w4a16", "w8a8", "gguf"})
      if (checkpoint.find(word) != std::string::npos)
        assumed(as_it_is + ": " + word + " of " + name + " is not modelled");
  if (const auto cache = command_.value({"kv-cache-dtype"})) {
    const std::string type = lower_case(*cache);
    if (type.starts_with("fp8") || type.starts_with("bf16") || type == "bfloat16") {
      const Precision precision = type.starts_with("fp8") ? Precision::Fp8 : Precision::Bf16;
      set_precision("kv_cache", precision);
      took(std::string(precision_name(precision)) + " KV cache (--kv-cache-dtype)");
    } else {
      assumed(std::string(precision_name(model_.kv_cache)) + " KV cache (--kv-cache-dtype " + *cache + ")");
    }
  }
  if (precision_json_.members().empty()) return;
  if (model_json_.is_string()) model_json_ = Json(Json::Object{{"preset", model_json_}});
  model_json_.set("precision", precision_json_);
}

void ServeReader::read_cluster(int gpus, int per_node) {
  const std::string gpu = hints_.gpu.empty() ? "h200-sxm" : hints_.gpu;
  const std::vector<std::string_view> known = gpu_names();
  if (std::find(known.begin(), known.end(), gpu) == known.end())
    throw InputError("--gpu: unknown GPU \"" + gpu + "\" " + known_names(gpu, known));
  gpu_ = gpu_preset(gpu);
  if (hints_.gpu.empty()) assumed("GPUs are " + gpu);
  if (hints_.gpus_per_node > 0) {
    per_node_ = hints_.gpus_per_node;
  } else if (per_node > 0) {
    per_node_ = per_node;
  } else {
    per_node_ = std::min(gpus, 8);
    assumed(number_text(per_node_) + " GPUs in a node");
  }
  if (gpus % per_node_ != 0)
    throw InputError(number_text(gpus) + " GPUs are no whole number of nodes of " + number_text(per_node_) +
                     ": say how many a node has");
  if (gpus > per_node_) assumed("nodes are joined by cx7-400g");
  gpus_ = gpus;
}

void ServeReader::set_workload(const ServeWorkload& w) {
  Json out = Json::object();
  const bool decode = w.phase == Phase::Decode;
  std::int64_t tokens = w.tokens;
  if (hints_.tokens > 0) {
    tokens = hints_.tokens;
  } else if (!w.tokens_from.empty()) {
    took(number_text(tokens) + " tokens a rank, all it may take (" + w.tokens_from + ")");
  } else {
    assumed("batches of " + number_text(tokens) + " tokens a rank");
  }
  std::int64_t context = hints_.context > 0 ? hints_.context : 4096;
  if (w.longest > 0 && context > w.longest) {
    context = w.longest;
    took("contexts of " + number_text(context) + " tokens, the longest it takes (" + w.longest_from + ")");
  } else {
    if (hints_.context == 0) assumed("contexts of " + number_text(context) + " tokens");
    if (w.longest > 0) took("contexts up to " + number_text(w.longest) + " tokens (" + w.longest_from + ")");
  }
  if (!hints_.phase && !w.phase_said) assumed(std::string("batches ") + (decode ? "that decode" : "of prompts"));
  out.set("phase", decode ? "decode" : "prefill");
  out.set("tokens_per_rank", tokens);
  out.set("context_tokens", context);
  if (decode && w.query_tokens > 1) out.set("query_tokens", w.query_tokens);
  workload_json_ = std::move(out);
}

void ServeReader::check_ranges() {
  for (const OptionRange& range : option_ranges(command_.server())) {
    const auto number = command_.number({range.name});
    if (!number || (*number <= range.high && (range.above ? *number > range.low : *number >= range.low))) continue;
    const auto text = [](double value) { return number_text(static_cast<std::int64_t>(value)); };
    refused("--" + std::string(range.name) + " " + *command_.value({range.name}) + " is not " +
            (range.above ? "above " : "from ") + text(range.low) +
            (range.high < 0x1p53 ? " to " + text(range.high) : " on"));
  }
}

FromServe ServeReader::finish(const char* server, std::string_view version, const ServeOverlap& o) {
  check_ranges();
  Json config = Json::object();
  config.set("model", model_json_);
  Json& cluster = config.set("cluster", Json::object());
  cluster.set("gpu", gpu_.name);
  cluster.set("gpus_per_node", per_node_);
  cluster.set("nodes", gpus_ / per_node_);
  Json& parallel = config.set("parallel", Json::object());
  parallel.set("data", gpus_ / tensor_);
  parallel.set("expert", gpus_);
  if (tensor_ > 1) parallel.set("tensor", tensor_);
  if (redundant_ > 0) parallel.set("redundant_experts", redundant_);
  config.set("workload", workload_json_);
  Json& overlap = config.set("overlap", Json::object());
  overlap.set("schedule", o.schedule);
  overlap.set("transport", transport_info(o.transport).name);
  overlap.set("ubatches", o.ubatches);
  if (o.coordination != Coordination::Sglang) {
    overlap.set("decode_token_threshold", o.decode_threshold);
    overlap.set("prefill_token_threshold", o.prefill_threshold);
    overlap.set("coordination", coordination_name(o.coordination));
  } else {
    overlap.set("token_distribution_threshold", o.token_distribution);
  }
  if (transport_info(o.transport).limits_sms) {
    overlap.set("comm_sms", o.comm_sms);
    overlap.set("comm_sms_created", o.comm_sms_created);
    overlap.set("sm_control", o.comm_sms > 0 ? "limit" : "none");
  }
  Json& execution = config.set("execution", Json::object());
  execution.set("mode", o.graph ? "graph" : "eager");
  if (o.graph && !o.graph_sizes.empty()) {
    Json& sizes = execution.set("graph_sizes", Json::array());
    for (const std::int64_t size : o.graph_sizes) sizes.push(size);
  }
  execution.set("host", "python");
  assumed("host costs of a Python server");
  config_from_json(JsonRef(wrap_json(config, server)));  // what no config can say is refused here
  for (const std::string& refusal : command_.refused()) refused(refusal);
  for (const std::string& version_note : command_.of_other_versions()) assumed(version_note);
  report_.config = std::move(config);
  report_.server = server;
  report_.version = version;
  std::vector<std::string> said = report_.took;
  said.emplace_back("--model, --model-path");  // as "model NAME"
  said.insert(said.end(), report_.assumed.begin(), report_.assumed.end());
  said.insert(said.end(), report_.refused.begin(), report_.refused.end());
  report_.unread = command_.unread(said);
  return std::move(report_);
}

void ServeReader::read_redundant(std::int64_t redundant, const char* from) {
  const int experts = model_.moe.routed_experts;
  if (redundant > 0) took(number_text(redundant) + " redundant experts (" + from + ")");
  if ((experts + redundant) % gpus_ == 0) {
    redundant_ = redundant;
    return;
  }
  if (redundant > 0)
    refused(number_text(experts) + " + " + number_text(redundant) + " experts do not spread evenly over " +
            number_text(gpus_) + " GPUs");
  redundant_ = (gpus_ - experts % gpus_) % gpus_;
  assumed(number_text(redundant_) + " redundant experts, so that experts spread evenly over the GPUs");
}

FromServe from_serve(const std::string& line, const ServeHints& hints) {
  ServeCommand command(line);
  return command.server() == Server::Vllm ? from_vllm(command, hints) : from_sglang(command, hints);
}

}  // namespace dbo
