#include "sim/search/serve_options.h"

#include <algorithm>

namespace dbo {
namespace {

// Names without dashes: all that the files of option_sources() declare, and of vLLM also those of a later copy of
// arg_utils.py whose commit is not known.
constexpr std::string_view kVllmSwitches =
    "enable-dbo enable-expert-parallel ep enforce-eager trust-remote-code enable-eplb headless "
    "aggregate-engine-logging enable-prefix-caching async-scheduling data-parallel-hybrid-lb dph "
    "data-parallel-external-lb dpe data-parallel-multi-port-external-lb dpm enable-chunked-prefill "
    "enable-auto-tool-choice enable-lora enable-prompt-embeds enable-sleep-mode enable-log-requests "
    "enable-log-outputs disable-log-stats disable-uvicorn-access-log disable-custom-all-reduce disable-cascade-attn "
    "disable-sliding-window disable-nccl-for-dp-synchronization disable-hybrid-kv-cache-manager disable-fastapi-docs "
    "disable-frontend-multiprocessing disable-chunked-mm-input allow-credentials enable-request-id-headers "
    "enable-server-load-tracking enable-prompt-tokens-details enable-force-include-usage "
    "enable-tokenizer-info-endpoint enable-ssl-refresh trust-request-chat-template return-tokens-as-token-ids "
    "exclude-tools-when-tool-choice-none log-error-stack tokens-only skip-tokenizer-init ray-workers-use-nsight "
    "language-model-only use-tqdm-on-load kv-sharing-fast-prefill enable-mm-embeds interleave-mm-strings "
    "skip-mm-profiling mm-encoder-only fully-sharded-loras enable-return-routed-experts return-sampling-mask "
    "use-fp64-gumbel enable-trace-replay allow-deprecated-quantization enable-cumem-allocator "
    "enable-nccl-comm-suspend enable-mamba-cache-stochastic-rounding numa-bind dcp-q-replicate "
    "enable-batch-sharded-sampling enable-ep-weight-filter enable-elastic-ep enable-fault-tolerance use-replayssm "
    "mm-device-do-normalize enable-tower-connector-lora specialize-active-lora enable-mixed-moe-lora-format "
    "enable-moe-shared-loras kv-cache-metrics cudagraph-metrics enable-layerwise-nvtx-tracing enable-mfu-metrics "
    "enable-logging-iteration-details scheduler-reserve-full-isl enable-flashinfer-autotune enable-bf16x3-router-gemm "
    "fail-on-environ-validation jit-monitor-verbose v version h help";

constexpr std::string_view kVllmValues =
    "model port host tensor-parallel-size tp data-parallel-size dp data-parallel-size-local dpl data-parallel-address "
    "dpa data-parallel-rpc-port dpp data-parallel-start-rank dpr data-parallel-rank dpn data-parallel-backend dpb "
    "pipeline-parallel-size pp decode-context-parallel-size dcp prefill-context-parallel-size pcp dcp-comm-backend "
    "dcp-kv-cache-interleave-size cp-kv-cache-interleave-size all2all-backend dbo-decode-token-threshold "
    "dbo-prefill-token-threshold ubatch-size dp-sync-interval eplb-config expert-placement-strategy "
    "compilation-config cc O optimization-level performance-mode max-cudagraph-capture-size speculative-config sc "
    "spec-method spec-model spec-tokens diffusion-config dc max-num-seqs max-num-batched-tokens "
    "max-num-scheduled-tokens max-num-queued-reqs max-num-queued-tokens max-model-len quantization q "
    "quantization-config kv-cache-dtype dtype gpu-memory-utilization block-size seed nnodes n node-rank r master-addr "
    "master-port device-ids kv-transfer-config kv-events-config ec-transfer-config ec-manager-config load-format "
    "download-dir safetensors-load-strategy safetensors-prefetch-num-threads safetensors-prefetch-block-size "
    "model-loader-extra-config pt-load-map-location tokenizer tokenizer-mode revision code-revision "
    "tokenizer-revision hf-token hf-config-path hf-overrides config-format allowed-local-media-path logprobs-mode "
    "model-class-overrides pooler-config io-processor-plugin renderer-num-workers root-path chat-template "
    "chat-template-content-format tool-call-parser tool-parser-plugin tool-server reasoning-parser "
    "reasoning-parser-plugin reasoning-config response-role config uds uvicorn-log-level log-config-file max-log-len "
    "h11-max-incomplete-event-size h11-max-header-count ssl-keyfile ssl-certfile ssl-ca-certs ssl-cert-reqs "
    "allowed-origins allowed-methods allowed-headers middleware distributed-executor-backend "
    "distributed-timeout-seconds cpu-distributed-timeout-seconds max-parallel-loading-workers worker-cls "
    "worker-extension-cls fault-tolerance-config scheduling-policy scheduler-cls long-prefill-token-threshold "
    "watermark prefill-schedule-interval stream-interval attention-backend attention-config ac mamba-backend "
    "mamba-ssu-algorithm mamba-cache-philox-rounds mamba-cache-dtype mamba-ssm-cache-dtype mamba-block-size "
    "mamba-cache-mode moe-backend linear-backend ir-op-priority kernel-config kv-cache-memory-bytes "
    "num-gpu-blocks-override prefix-caching-hash-algo prefix-cache-retention-interval prefix-match-unit "
    "replayssm-buffer-len kv-offloading-size kv-offloading-backend offload-backend cpu-offload-gb offload-group-size "
    "offload-num-in-group offload-prefetch-step max-logprobs runner convert generation-config "
    "override-generation-config limit-mm-per-prompt media-io-kwargs mm-processor-kwargs mm-processor-cache-gb "
    "mm-processor-cache-type mm-hasher-algorithm mm-shm-cache-max-object-size-mb mm-encoder-tp-mode "
    "mm-encoder-attn-backend mm-encoder-attn-dtype mm-encoder-fp8-scale-path mm-encoder-fp8-scale-save-path "
    "mm-encoder-fp8-scale-save-margin video-pruning-rate video-pruning-method mm-tensor-ipc mm-processor-device "
    "mm-ipc-gpu-memory-gb max-loras max-lora-rank lora-dtype max-cpu-loras default-mm-loras additional-config "
    "model-impl show-hidden-metrics-for-version otlp-traces-endpoint per-request-spec-decode-metrics "
    "kv-cache-metrics-sample jit-monitor-mode api-server-count asc profiler-config structured-outputs-config "
    "weight-transfer-config shutdown-timeout gdn-prefill-backend kda-prefill-backend";

constexpr std::string_view kVllmLists =
    "cudagraph-capture-sizes served-model-name lora-modules api-key ignore-patterns collect-detailed-traces "
    "allowed-media-domains logits-processors numa-bind-nodes numa-bind-cpus kv-cache-dtype-skip-layers "
    "cpu-offload-params offload-params lora-target-modules";

constexpr std::string_view kSglangSwitches =
    "skip-tokenizer-init trust-remote-code is-embedding enable-multimodal enable-fp32-lm-head quantize-and-serve "
    "enable-tf32-matmul enable-dynamic-chunking enable-priority-scheduling disable-priority-preemption "
    "abort-on-priority-when-disabled schedule-low-priority-values-first disable-hybrid-swa-memory "
    "prefill-only-disable-kv-cache disable-radix-cache enable-page-major-kv-layout enable-unified-memory "
    "disable-chunked-prefix-cache disable-overlap-schedule enable-mixed-chunk dcp-replicate-q-proj enable-prefill-cp "
    "enable-dsa-cache-layer-split enable-cp-decode-attn-tp enable-dp-attention "
    "enable-dp-attention-local-control-broadcast enable-dp-lm-head enable-tp-lm-head-all-to-all "
    "enable-attn-tp-input-scattered enable-shared-experts-attn-tp enable-dense-mlp-attn-tp disable-attn-tp-gather "
    "enable-p2p-check mlx-enable-sampling sleep-on-idle use-ray smg-grpc-mode grpc-mode skip-server-warmup "
    "enable-http2 enable-ssl-refresh enable-cache-report strip-thinking-cache enable-strict-thinking "
    "allow-auto-truncate stream-response-default-include-usage incremental-streaming-output enable-streaming-session "
    "enable-session-radix-cache log-requests show-time-cost enable-metrics enable-mfu-metrics "
    "enable-metrics-for-all-schedulers enable-request-time-stats-logging enable-forward-pass-metrics enable-trace "
    "export-metrics-to-file constrained-json-disable-any-whitespace disable-flashinfer-autotune "
    "disable-prefill-cuda-graph disable-decode-cuda-graph disable-cuda-graph disable-cuda-graph-padding "
    "enable-profile-cuda-graph enable-cudagraph-gc debug-cuda-graph enable-layerwise-nvtx-marker enable-nccl-nvls "
    "enable-symm-mem triton-attention-reduce-in-fp32 flashinfer-mla-disable-ragged enable-fused-qk-norm-rope "
    "enable-precise-embedding-interpolation enable-fused-moe-sum-all-reduce enable-deepseek-v4-fp4-indexer "
    "disable-custom-all-reduce enable-mscclpp enable-torch-symm-mem enable-scattered-sconv pre-warm-nccl "
    "enable-quant-communications enforce-disable-flashinfer-allreduce-fusion enable-aiter-allreduce-fusion "
    "enable-torch-compile enable-torch-compile-debug-mode speculative-dspark-align-verify-tokens-to-graph-tier "
    "speculative-use-rejection-sampling speculative-skip-dp-mlp-sync enable-multi-layer-eagle speculative-adaptive "
    "enable-w4a4-mxfp4-megamoe enable-eplb enable-elastic-expert-backup enable-waterfill elastic-ep-rejoin "
    "disable-flashinfer-cutlass-moe-fp4-allgather disable-shared-experts-fusion enforce-shared-experts-fusion "
    "enable-mamba-cache-stochastic-rounding enable-int8-mamba-checkpoint enable-linear-replayssm "
    "enable-linear-replayssm-spec enable-hierarchical-cache enable-hisparse enable-broadcast-mm-inputs-process "
    "enable-prefix-mm-cache mm-enable-dp-encoder trust-mm-content-hashes enable-mm-global-cache "
    "disable-fast-image-processor keep-mm-feature-on-device enable-lora enable-lora-overlap-loading "
    "experts-shared-outer-loras lora-use-virtual-experts lora-strict-loading enable-two-batch-overlap "
    "enable-single-batch-overlap enable-lmcache enable-flexkv dllm-fdfo disaggregation-decode-enable-radix-cache "
    "disaggregation-decode-enable-offload-kvcache encoder-only language-only language-model-only "
    "enable-adaptive-dispatch-to-encoder enable-pdmux weight-loader-disable-mmap weight-loader-prefetch-checkpoints "
    "weight-loader-drop-cache-after-load remote-instance-weight-loader-start-seed-via-transfer-engine "
    "delete-ckpt-after-loading checkpoint-engine-wait-weights-before-ready enable-prefill-delayer "
    "enable-deterministic-inference enable-dynamic-batch-tokenizer enable-tokenizer-batch-encode "
    "disable-tokenizer-batch-decode enable-memory-saver enable-weights-cpu-backup enable-draft-weights-cpu-backup "
    "enable-custom-logit-processor enable-return-hidden-states enable-return-routed-experts "
    "enable-return-indexer-topk disable-outlines-disk-cache enable-mis stream-output prefill-round-robin-balance "
    "collect-tokens-histogram enable-breakable-cuda-graph disable-piecewise-cuda-graph enforce-piecewise-cuda-graph "
    "enable-dsa-prefill-context-parallel enable-nsa-prefill-context-parallel enable-gdn-replayssm-spec "
    "enable-prefill-context-parallel enable-flashinfer-allreduce-fusion help h";

constexpr std::string_view kSglangValues =
    "model-path model tokenizer-path tokenizer-mode tokenizer-backend tokenizer-worker-num detokenizer-worker-num "
    "load-format model-loader-extra-config context-length revision model-impl model-config-parser "
    "json-model-override-args dtype quantization quantization-param-path kv-cache-dtype modelopt-quant "
    "modelopt-checkpoint-restore-path modelopt-checkpoint-save-path modelopt-export-path rl-quant-profile "
    "mem-fraction-static max-running-requests max-queued-requests max-total-tokens chunked-prefill-size "
    "prefill-decode-interval max-prefill-tokens prefill-max-requests schedule-policy default-priority-value "
    "priority-scheduling-preemption-threshold retraction-policy schedule-conservativeness page-size c128-page-size "
    "swa-full-tokens-ratio radix-eviction-policy num-continuous-decode-steps scheduler-recv-interval nccl-port "
    "dist-timeout dist-init-addr nccl-init-addr gated-launch-port nnodes node-rank tp-size tensor-parallel-size "
    "dcp-size decode-context-parallel-size pp-size pipeline-parallel-size pp-max-micro-batch-size "
    "pp-async-batch-depth dp-size data-parallel-size load-balance-method attn-cp-size attention-context-parallel-size "
    "moe-dp-size moe-data-parallel-size dwdp-size dcp-comm-backend cp-strategy device base-gpu-id gpu-id-step "
    "random-seed watchdog-timeout soft-watchdog-timeout host port fastapi-root-path grpc-port sidecar sidecar-args "
    "warmups http2-max-concurrent-streams ssl-keyfile ssl-certfile ssl-ca-certs ssl-keyfile-password api-key "
    "admin-api-key served-model-name weight-version chat-template hf-chat-template-name completion-template "
    "file-storage-path reasoning-parser default-chat-template-kwargs tool-call-parser tool-server sampling-defaults "
    "asr-max-buffer-seconds asr-max-concurrent-sessions preferred-sampling-params stream-interval batch-notify-size "
    "log-level log-level-http log-requests-level log-requests-format crash-dump-folder smg-http-sidecar-port "
    "grpc-http-sidecar-port load-snapshot-publish-interval tokenizer-metrics-custom-labels-header extra-metric-labels "
    "gc-warning-threshold-secs decode-log-interval kv-events-config forward-pass-metrics-worker-id "
    "forward-pass-metrics-ipc-name trace-modules otlp-traces-endpoint export-metrics-to-file-dir "
    "constrained-json-whitespace-pattern attention-backend decode-attention-backend prefill-attention-backend "
    "sampling-backend grammar-backend radix-cache-backend mm-attention-backend fp8-gemm-backend fp4-gemm-backend "
    "bf16-gemm-backend dsa-prefill-backend dsv4-prefill-backend dsa-decode-backend dsa-paged-mqa-logits-backend "
    "dsa-topk-backend mamba-backend cuda-graph-config cuda-graph-backend-decode cuda-graph-backend-prefill "
    "cuda-graph-max-bs-decode cuda-graph-max-bs-prefill cuda-graph-max-bs cuda-graph-tc-compiler "
    "triton-attention-num-kv-splits triton-attention-split-tile-size flashinfer-allreduce-fusion-backend "
    "torch-compile-max-bs speculative-algorithm speculative-draft-model-path speculative-draft-model "
    "speculative-draft-model-revision speculative-draft-load-format speculative-num-steps speculative-eagle-topk "
    "speculative-num-draft-tokens speculative-dflash-block-size speculative-dspark-block-size "
    "speculative-dspark-sps-table-path speculative-dspark-confidence-sts-path speculative-accept-threshold-single "
    "speculative-accept-threshold-acc speculative-token-map speculative-attention-mode "
    "speculative-draft-attention-backend speculative-dsa-topk-backend speculative-draft-kv-cache-dtype "
    "speculative-draft-window-size speculative-dflash-draft-window-size speculative-moe-runner-backend "
    "speculative-moe-a2a-backend speculative-draft-model-quantization speculative-adaptive-config "
    "decoupled-spec-bind-endpoint decoupled-spec-connect-endpoints decoupled-spec-rank decoupled-spec-role "
    "spec-trace-dir speculative-ngram-min-bfs-breadth speculative-ngram-max-bfs-breadth speculative-ngram-match-type "
    "speculative-ngram-max-trie-depth speculative-ngram-capacity speculative-ngram-external-corpus-path "
    "speculative-ngram-external-sam-budget speculative-ngram-external-corpus-max-tokens ep-size expert-parallel-size "
    "ep moe-a2a-backend deepep-v2-mode moe-runner-backend flashinfer-mxfp4-moe-precision deepep-mode fuseep-mode "
    "deepep-dispatcher-output-dtype ep-num-redundant-experts ep-dispatch-algorithm init-expert-location "
    "eplb-algorithm eplb-rebalance-num-iterations eplb-rebalance-layers-per-chunk "
    "eplb-min-rebalancing-utilization-threshold expert-distribution-recorder-mode "
    "expert-distribution-recorder-buffer-size expert-balancedness-report-mode deepep-config moe-dense-tp-size "
    "elastic-ep-backend mooncake-ib-device elastic-ep-join-mode elastic-ep-join-rank-offset elastic-ep-initial-size "
    "max-ep-size elastic-ep-scale-timeout max-mamba-cache-size mamba-ssm-dtype mamba-max-states-per-path "
    "mamba-cache-philox-rounds mamba-full-memory-ratio mamba-radix-cache-strategy mamba-scheduler-strategy "
    "mamba-track-interval int8-mamba-ckpt-size linear-attn-backend linear-attn-decode-backend "
    "linear-attn-prefill-backend linear-attn-verify-backend linear-replayssm-cache-len hicache-host-memory-mode "
    "hicache-ratio hicache-size hicache-write-policy hicache-io-backend hicache-mem-layout hicache-storage-backend "
    "hicache-storage-prefetch-policy hicache-storage-backend-extra-config hisparse-config "
    "hierarchical-sparse-attention-extra-config mm-process-config mm-processor-worker-num mm-io-worker-num "
    "media-url-max-file-size-mb mm-preprocess-cache-size-mb limit-mm-data-per-request image-processor-backend "
    "mm-global-cache-backend mm-feature-transport max-lora-rank max-loaded-loras max-loras-per-batch "
    "lora-eviction-policy lora-backend max-lora-chunk-size lora-drain-wait-threshold tbo-token-distribution-threshold "
    "cpu-offload-gb offload-group-size offload-num-in-group offload-prefetch-step offload-mode lmcache-config-file "
    "flexkv-config-file kt-weight-path kt-method kt-cpuinfer kt-threadpool-count kt-num-gpu-experts "
    "kt-max-deferred-experts-per-token dllm-algorithm dllm-algorithm-config disaggregation-mode "
    "disaggregation-transfer-backend disaggregation-bootstrap-port disaggregation-ib-device "
    "disaggregation-decode-retraction-backup num-reserved-decode-tokens disaggregation-decode-extra-slots "
    "disaggregation-decode-polling-interval optimistic-prefill-attempts encoder-transfer-backend "
    "encoder-bootstrap-port pdmux-config-path sm-group-num startup-weight-load-mode "
    "weight-loader-prefetch-num-threads remote-instance-weight-loader-seed-instance-ip "
    "remote-instance-weight-loader-seed-instance-service-port remote-instance-weight-loader-send-weights-group-ports "
    "remote-instance-weight-loader-backend engine-info-bootstrap-port modelexpress-config download-dir model-checksum "
    "decrypted-config-file decrypted-draft-config-file prefill-delayer-max-delay-passes "
    "prefill-delayer-token-usage-low-watermark prefill-delayer-queue-min-ratio prefill-delayer-max-delay-ms "
    "min-free-slots-delay rl-on-policy-target kv-canary kv-canary-real-data kv-canary-sweep-interval "
    "dynamic-batch-tokenizer-batch-size dynamic-batch-tokenizer-batch-timeout debug-tensor-dump-output-folder "
    "debug-tensor-dump-input-file return-hidden-states-mode weight-cache-mode weight-cache-socket "
    "weight-cache-timeout forward-hooks msprobe-dump-config config nsa-prefill-backend nsa-decode-backend "
    "piecewise-cuda-graph-compiler piecewise-cuda-graph-max-tokens dsa-prefill-cp-mode nsa-prefill-cp-mode "
    "prefill-cp-mode";

constexpr std::string_view kSglangLists =
    "numa-node gc-threshold log-requests-target uvicorn-access-log-exclude-prefixes "
    "tokenizer-metrics-allowed-custom-labels bucket-time-to-first-token bucket-inter-token-latency "
    "bucket-e2e-request-latency prompt-tokens-buckets generation-tokens-buckets flashinfer-autotune-skip-ops "
    "cuda-graph-bs-decode cuda-graph-bs-prefill cuda-graph-bs piecewise-cuda-graph-tokens lora-paths "
    "lora-target-modules allowed-media-domains encoder-urls encoder-register-urls custom-weight-loader "
    "prefill-delayer-forward-passes-buckets prefill-delayer-wait-seconds-buckets debug-tensor-dump-layers";

/// Options of vLLM that are written with one dash.
constexpr std::string_view kVllmShort =
    "ep dph dpe dpm tp dp dpl dpa dpp dpr dpn dpb pp dcp pcp cc sc dc ac O q n r asc v h";

/// Switches that no "--no-" turns off; of SGLang's it is the other way round.
constexpr std::string_view kVllmOneWay =
    "headless disable-log-stats aggregate-engine-logging data-parallel-multi-port-external-lb dpm v version h help";
constexpr std::string_view kSglangTwoWay =
    "dcp-replicate-q-proj enable-tp-lm-head-all-to-all experts-shared-outer-loras lora-strict-loading dllm-fdfo";

struct Gone {
  std::string_view name;
  Takes takes;
  std::string_view instead;  ///< empty: nothing
};

/// Options that older versions have, and the latest state read has not.
constexpr Gone kVllmGone[] = {{"task", Takes::Value, "--runner"},
                              {"rope-scaling", Takes::Value, "--hf-overrides"},
                              {"rope-theta", Takes::Value, "--hf-overrides"},
                              {"override-pooler-config", Takes::Value, "--pooler-config"},
                              {"override-attention-dtype", Takes::Value, ""},
                              {"logits-processor-pattern", Takes::Value, ""},
                              {"guided-decoding-backend", Takes::Value, "--structured-outputs-config"},
                              {"guided-decoding-disable-fallback", Takes::Value, "--structured-outputs-config"},
                              {"guided-decoding-disable-any-whitespace", Takes::Value, "--structured-outputs-config"},
                              {"num-redundant-experts", Takes::Value, "--eplb-config"},
                              {"eplb-window-size", Takes::Value, "--eplb-config"},
                              {"eplb-step-interval", Takes::Value, "--eplb-config"},
                              {"eplb-log-balancedness", Takes::Nothing, "--eplb-config"},
                              {"enable-multimodal-encoder-data-parallel", Takes::Nothing, "--mm-encoder-tp-mode data"},
                              {"disable-mm-preprocessor-cache", Takes::Nothing, "--mm-processor-cache-gb 0"},
                              {"disable-log-requests", Takes::Nothing, "--no-enable-log-requests"},
                              {"swap-space", Takes::Value, ""},
                              {"calculate-kv-scales", Takes::Nothing, ""},
                              {"lora-extra-vocab-size", Takes::Value, ""},
                              {"max-num-partial-prefills", Takes::Value, ""},
                              {"max-long-partial-prefills", Takes::Value, ""},
                              {"num-lookahead-slots", Takes::Value, ""},
                              {"cuda-graph-sizes", Takes::Values, "--cudagraph-capture-sizes"}};

constexpr Gone kSglangGone[] = {
    {"enable-deepep-moe", Takes::Nothing, "--moe-a2a-backend deepep"},
    {"enable-ep-moe", Takes::Nothing, "--ep-size"},
    {"enable-flashinfer-moe", Takes::Nothing, "--moe-runner-backend"},
    {"enable-flashinfer-cutlass-moe", Takes::Nothing, "--moe-runner-backend"},
    {"enable-flashinfer-cutedsl-moe", Takes::Nothing, "--moe-runner-backend"},
    {"enable-flashinfer-trtllm-moe", Takes::Nothing, "--moe-runner-backend"},
    {"enable-flashinfer-mxfp4-moe", Takes::Nothing, "--moe-runner-backend"},
    {"enable-triton-kernel-moe", Takes::Nothing, "--moe-runner-backend"},
    {"enable-expert-distribution-metrics", Takes::Nothing, "--expert-balancedness-report-mode"},
    {"torch-compile-bs", Takes::Values, "--torch-compile-max-bs"}};

/// Calls `visit` with each word of the text until it returns true.
template <typename Visit>
bool any_word(std::string_view text, Visit visit) {
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    if (visit(text.substr(begin, end - begin))) return true;
    begin = end + 1;
  }
  return false;
}

bool holds(std::string_view text, std::string_view name) {
  return any_word(text, [&](std::string_view word) { return word == name; });
}

struct Lists {
  std::string_view switches, values, lists;
};

Lists lists_of(Server server) {
  return server == Server::Vllm ? Lists{kVllmSwitches, kVllmValues, kVllmLists}
                                : Lists{kSglangSwitches, kSglangValues, kSglangLists};
}

const Gone* find_gone(Server server, std::string_view name) {
  const auto find = [&](const auto& table) -> const Gone* {
    for (const Gone& gone : table)
      if (gone.name == name) return &gone;
    return nullptr;
  };
  return server == Server::Vllm ? find(kVllmGone) : find(kSglangGone);
}

bool turns_off(Server server, std::string_view name) {
  if (server == Server::Sglang) return holds(kSglangTwoWay, name);
  return holds(kVllmSwitches, name) && !holds(kVllmOneWay, name) && !holds(kVllmShort, name);
}

}  // namespace

std::optional<Takes> find_option(Server server, std::string_view name) {
  const Lists lists = lists_of(server);
  if (holds(lists.switches, name)) return Takes::Nothing;
  if (holds(lists.values, name)) return Takes::Value;
  if (holds(lists.lists, name)) return Takes::Values;
  if (const Gone* gone = find_gone(server, name)) return gone->takes;
  if (name.starts_with("no-") && turns_off(server, name.substr(3))) return Takes::Nothing;
  return std::nullopt;
}

std::vector<std::string_view> option_names(Server server) {
  std::vector<std::string_view> names;
  const Lists lists = lists_of(server);
  for (const std::string_view list : {lists.switches, lists.values, lists.lists})
    any_word(list, [&](std::string_view word) {
      names.push_back(word);
      return false;
    });
  return names;
}

bool is_short_option(Server server, std::string_view name) {
  return server == Server::Vllm ? holds(kVllmShort, name) : name == "h";
}

std::optional<std::string_view> gone_option(Server server, std::string_view name) {
  const Gone* gone = find_gone(server, name);
  if (gone == nullptr) return std::nullopt;
  return gone->instead;
}

std::vector<std::string_view> options_beginning(Server server, std::string_view beginning) {
  std::vector<std::string_view> found;
  if (beginning.empty()) return found;
  for (const std::string_view name : option_names(server))
    if (name.starts_with(beginning) && !is_short_option(server, name)) found.push_back(name);
  return found;
}

namespace {

constexpr double kAnyCount = 0x1p53, kMostPort = 65535;
constexpr OptionRange kVllmRanges[] = {{"gpu-memory-utilization", 0, 1, true},
                                       {"block-size", 1, kAnyCount},
                                       {"pipeline-parallel-size", 1, kAnyCount},
                                       {"data-parallel-size-local", 0, kAnyCount},
                                       {"num-redundant-experts", 0, kAnyCount},
                                       {"nnodes", 1, kAnyCount},
                                       {"node-rank", 0, kAnyCount},
                                       {"api-server-count", 0, kAnyCount},
                                       {"cpu-offload-gb", 0, kAnyCount},
                                       {"long-prefill-token-threshold", 0, kAnyCount},
                                       {"max-num-scheduled-tokens", 1, kAnyCount},
                                       {"num-gpu-blocks-override", 1, kAnyCount},
                                       {"port", 0, kMostPort},
                                       {"master-port", 0, kMostPort},
                                       {"data-parallel-rpc-port", 0, kMostPort}};
constexpr OptionRange kSglangRanges[] = {{"mem-fraction-static", 0, 1, true},
                                         {"page-size", 1, kAnyCount},
                                         {"pp-size", 1, kAnyCount},
                                         {"ep-size", 1, kAnyCount},
                                         {"ep-num-redundant-experts", 0, kAnyCount},
                                         {"node-rank", 0, kAnyCount},
                                         {"chunked-prefill-size", -1, kAnyCount},
                                         {"max-prefill-tokens", 1, kAnyCount},
                                         {"max-total-tokens", 1, kAnyCount},
                                         {"num-continuous-decode-steps", 1, kAnyCount},
                                         {"schedule-conservativeness", 0, kAnyCount},
                                         {"port", 0, kMostPort},
                                         {"nccl-port", 0, kMostPort}};

}  // namespace

std::span<const OptionRange> option_ranges(Server server) {
  if (server == Server::Vllm) return kVllmRanges;
  return kSglangRanges;
}

std::string_view option_sources(Server server) {
  return server == Server::Vllm ? "engine/arg_utils.py at 99d7eb5d, entrypoints/openai/cli_args.py at 789340fb"
                                : "srt/server_args.py at 001067ff";
}

}  // namespace dbo
