#include "sim/base/schedule_names.h"

namespace dbo {

const std::vector<ScheduleName>& schedule_names() {
  using enum TransportClass;
  static const std::vector<ScheduleName> table = {
      {.name = kSequentialSchedule,
       .schedule_class = Both,
       .default_transport = Transport::Ht,
       .most_ubatches = 64,
       .sglang = false,
       .what = "the un-split step: one batch, shared expert beside the combine"},
      {.name = "vllm-ll",
       .schedule_class = LowLatency,
       .default_transport = Transport::Ll,
       .most_ubatches = 64,
       .sglang = false,
       .what = "vLLM, low latency: a thread a ubatch, receive hooks, one lane"},
      {.name = "vllm-ht",
       .schedule_class = HighThroughput,
       .default_transport = Transport::Ht,
       .most_ubatches = 64,
       .sglang = false,
       .what = "vLLM, high throughput: a thread a ubatch, comm lane, three yields a layer"},
      {.name = "sglang-decode",
       .schedule_class = LowLatency,
       .default_transport = Transport::Ll,
       .most_ubatches = 2,
       .sglang = true,
       .what = "SGLang decode: five stages, the second ubatch two stages behind"},
      {.name = "sglang-prefill",
       .schedule_class = HighThroughput,
       .default_transport = Transport::Ht,
       .most_ubatches = 2,
       .sglang = true,
       .what = "SGLang prefill: three stages, the ubatches alternate"},
      {.name = "deepseek-decode",
       .schedule_class = LowLatency,
       .default_transport = Transport::Ll,
       .most_ubatches = 2,
       .sglang = false,
       .what = "DeepSeek's decode profile: five stages, no communication under the experts"},
      {.name = "deepseek-prefill",
       .schedule_class = HighThroughput,
       .default_transport = Transport::Ht,
       .most_ubatches = 2,
       .sglang = false,
       .what = "DeepSeek's prefill profile: ubatch 1 leads, combine of 0 under attention of 1"},
  };
  return table;
}

const ScheduleName* find_schedule_name(std::string_view name) {
  for (const ScheduleName& schedule : schedule_names())
    if (schedule.name == name) return &schedule;
  return nullptr;
}

}  // namespace dbo
