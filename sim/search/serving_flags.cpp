#include "sim/search/serving_flags.h"

#include <algorithm>
#include <cmath>

#include "sim/base/schedule_names.h"
#include "sim/search/serve_options.h"

namespace dbo {
namespace {

/// More tokens than any batch has: never split.
constexpr std::int64_t kNeverSplit = 1000000;

std::string two_decimals(double value) {
  const auto hundredths = static_cast<std::int64_t>(std::llround(value * 100));
  const std::string cents = std::to_string(hundredths % 100);
  return std::to_string(hundredths / 100) + "." + (cents.size() < 2 ? "0" : "") + cents;
}

std::string transport_name(const TunePoint& p) {
  return std::string(transport_info(p.transport).name);
}

std::int64_t threshold(const Advice& advice, Phase phase, std::int64_t fallback) {
  for (const Crossover& c : advice.crossovers) {
    if (c.phase != phase) continue;
    if (!c.tokens) return kNeverSplit;
    // vLLM refuses thresholds below the number of ubatches.
    return std::max<std::int64_t>(*c.tokens, advice.setting->ubatches);
  }
  return fallback;
}

/// Of a server that is told to split: thresholds keep batches whole that lose by it.
ServingFlags vllm_on(const Config& config, const Advice& advice) {
  const TunePoint& s = *advice.setting;
  ServingFlags out;
  const bool high_throughput = s.transport == Transport::Ht;
  out.command = {"vllm", "serve", "MODEL", "--data-parallel-size", std::to_string(s.gpus / config.parallel.tensor)};
  const auto add = [&](std::initializer_list<std::string> words) {
    out.command.insert(out.command.end(), words.begin(), words.end());
  };
  if (config.parallel.tensor > 1) add({"--tensor-parallel-size", std::to_string(config.parallel.tensor)});
  add({"--enable-expert-parallel", "--all2all-backend",
       high_throughput ? "deepep_high_throughput" : "deepep_low_latency"});
  if (s.ubatches == 2)
    add({"--enable-dbo"});
  else
    add({"--ubatch-size", std::to_string(s.ubatches)});
  add({"--dbo-decode-token-threshold",
       std::to_string(threshold(advice, Phase::Decode, config.overlap.decode_token_threshold)),
       "--dbo-prefill-token-threshold",
       std::to_string(threshold(advice, Phase::Prefill, config.overlap.prefill_token_threshold))});
  if (high_throughput) {
    // With 0 nothing is limited, and DeepEP uses the SMs it was created with.
    out.env.push_back("VLLM_DBO_COMM_SMS=" + std::to_string(s.sm_control == SmControl::None ? 0 : s.comm_sms));
    out.notes.emplace_back("with deepep_high_throughput every step is eager");
  }
  if (s.gpus > config.cluster.gpus_per_node)
    out.notes.emplace_back("several nodes also need --data-parallel-address and --data-parallel-size-local on each");
  return out;
}

ServingFlags vllm_flags(const Config& config, const Advice& advice) {
  ServingFlags out;
  const bool pays = std::any_of(advice.crossovers.begin(), advice.crossovers.end(),
                                [](const Crossover& c) { return c.tokens.has_value(); });
  if (advice.on)
    out = vllm_on(config, advice);
  else if (pays)
    out.where_it_pays = vllm_on(config, advice).line();
  out.version = vllm_version();
  return out;
}

ServingFlags sglang_flags(const Config& config, const Advice& advice) {
  const TunePoint& s = *advice.setting;
  ServingFlags out;
  out.version = sglang_version();
  const bool normal = s.transport == Transport::Ht;
  if (!advice.on) return out;
  out.command = {"python3", "-m", "sglang.launch_server", "--model-path", "MODEL", "--tp-size", std::to_string(s.gpus),
                 "--dp-size", std::to_string(s.gpus / config.parallel.tensor), "--enable-dp-attention",
                 "--moe-a2a-backend", "deepep", "--deepep-mode",
                 // Left to choose, it takes low latency for decode and normal kernels for prompts.
                 normal != (s.phase == Phase::Decode) ? "auto"
                 : normal                             ? "normal"
                                                      : "low_latency",
                 "--enable-two-batch-overlap"};
  if (config.overlap.token_distribution_threshold != 0.48) {
    out.command.emplace_back("--tbo-token-distribution-threshold");
    out.command.push_back(two_decimals(config.overlap.token_distribution_threshold));
  }
  if (normal) {
    const std::string sms = std::to_string(s.comm_sms);
    out.command.emplace_back("--deepep-config");
    out.command.push_back(R"('{"normal_dispatch": {"num_sms": )" + sms + R"(}, "normal_combine": {"num_sms": )" + sms +
                          "}}'");
    out.notes.emplace_back("a DeepEP config needs its buffer chunk sizes too: take them from DeepEP's own tuning");
  }
  for (const Crossover& c : advice.crossovers)
    if (!c.always)
      out.notes.push_back("SGLang has no token threshold: it splits " +
                          std::string(phase_names()[static_cast<std::size_t>(c.phase)]) + " where that " +
                          (c.tokens ? "does not pay, below " + std::to_string(*c.tokens) + " tokens a rank"
                                    : "never pays, up to " + std::to_string(c.largest()) + " tokens a rank"));
  if (s.gpus > config.cluster.gpus_per_node)
    out.notes.push_back("several nodes also need --nnodes " + std::to_string(s.gpus / config.cluster.gpus_per_node) +
                        ", --node-rank and --dist-init-addr on each");
  return out;
}

}  // namespace

std::string vllm_version() {
  return "vLLM, read from " + std::string(option_sources(Server::Vllm)) +
         ", config/parallel.py at 00193b82, config/vllm.py at 000fc94b";
}

std::string sglang_version() {
  return "SGLang, read from " + std::string(option_sources(Server::Sglang)) +
         ", arg_groups/moe_hook.py at 003b6ade, arg_groups/parallel_hook.py at 008b79d2, "
         "arg_groups/cuda_graph_hook.py at 019667ad, two_batch_overlap.py at 0099dee6";
}

std::string ServingFlags::line() const {
  std::string text;
  if (command.empty()) return text;
  for (const std::string& variable : env) text += variable + " ";
  for (std::size_t i = 0; i < command.size(); ++i) text += (i == 0 ? "" : " ") + command[i];
  return text;
}

ServingFlags serving_flags(const Config& config, const Advice& advice) {
  const bool vllm = advice.server == "vLLM";
  if (advice.setting) return vllm ? vllm_flags(config, advice) : sglang_flags(config, advice);
  ServingFlags none;
  none.version = vllm ? vllm_version() : sglang_version();
  return none;
}

std::string crossover_text(const Crossover& c) {
  if (!c.tokens) return "never, up to " + std::to_string(c.largest()) + " tokens a rank";
  if (c.always) return "from the smallest batch on (" + std::to_string(*c.tokens) + " tokens a rank)";
  return "from " + std::to_string(*c.tokens) + " tokens a rank on";
}

std::string advice_text(const Advice& a) {
  if (!a.reason.empty()) return a.reason;
  const TunePoint& s = *a.setting;
  std::string text = s.schedule + " over " + transport_name(s);
  if (s.comm_sms > 0) text += " with " + std::to_string(s.comm_sms) + " comm SMs";
  text += " gives " + two_decimals(a.sureness.gain) + "x the tokens of the best un-split step (" +
          transport_name(*a.unsplit) + ") at " + std::to_string(s.tokens) + " tokens a rank";
  if (a.sureness.spread == 0) return text;
  text += ", " + two_decimals(a.sureness.least) + "x to " + two_decimals(a.sureness.most) + "x if costs are off by " +
          std::to_string(std::llround(100 * a.sureness.spread)) + " %";
  if (a.sureness.skewed)
    text += ", " + two_decimals(*a.sureness.skewed) + "x with experts as skewed as SGLang's (zipf 0.69)";
  return text + (a.sureness.sure() ? "" : ": measure before you decide");
}

}  // namespace dbo
