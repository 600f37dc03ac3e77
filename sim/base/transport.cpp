#include "sim/base/transport.h"

#include "sim/base/error.h"

namespace dbo {

const std::vector<TransportInfo>& transports() {
  using enum TransportClass;
  static const std::vector<TransportInfo> table = {
      {.id = Transport::Ht,
       .name = "ht",
       .transport_class = HighThroughput,
       .what = "DeepEP high throughput, as vLLM drives it",
       .simulated_only = true,
       .host_blocks = true,
       .capturable = false,
       .sms_even = true,
       .sms_capped_by_created = true,
       .sms_as_asked = false,
       .limits_sms = true,
       .padded = false,
       .dedup_per_rank = true,
       .handle_slots = 2,
       .wire = WireEngine::Kernel,
       .sms = "comm SMs, even, at most comm_sms_created"},
      {.id = Transport::Ll,
       .name = "ll",
       .transport_class = LowLatency,
       .what = "DeepEP low latency",
       .simulated_only = true,
       .host_blocks = false,
       .capturable = true,
       .sms_even = false,
       .sms_capped_by_created = false,
       .sms_as_asked = false,
       .limits_sms = false,
       .padded = false,
       .dedup_per_rank = false,
       .handle_slots = 2,
       .wire = WireEngine::SendKernelOrNic,
       .sms = "send and receive kernels; none on the wire between nodes"},
      {.id = Transport::LsaHt,
       .name = "lsa-ht",
       .transport_class = HighThroughput,
       .what = "one-sided kernels over NCCL windows, fixed slots",
       .simulated_only = false,
       .host_blocks = false,
       .capturable = true,
       .sms_even = false,
       .sms_capped_by_created = false,
       .sms_as_asked = true,
       .limits_sms = true,
       .padded = false,
       .dedup_per_rank = true,
       .handle_slots = 2,
       .wire = WireEngine::Kernel,
       .sms = "as many blocks as comm_sms"},
      {.id = Transport::LsaLl,
       .name = "lsa-ll",
       .transport_class = LowLatency,
       .what = "send and receive kernels over NCCL windows",
       .simulated_only = false,
       .host_blocks = false,
       .capturable = true,
       .sms_even = false,
       .sms_capped_by_created = false,
       .sms_as_asked = false,
       .limits_sms = false,
       .padded = false,
       .dedup_per_rank = false,
       .handle_slots = 2,
       .wire = WireEngine::SendKernelOrNic,
       .sms = "send and receive kernels, as chosen"},
      {.id = Transport::CopyEngine,
       .name = "copy-engine",
       .transport_class = Both,
       .what = "pack, peer copies on copy engines, arrival flags",
       .simulated_only = false,
       .host_blocks = false,
       .capturable = true,
       .sms_even = false,
       .sms_capped_by_created = false,
       .sms_as_asked = false,
       .limits_sms = false,
       .padded = true,
       .dedup_per_rank = true,
       .handle_slots = 2,
       .wire = WireEngine::CopyEngine,
       .sms = "pack and receive kernels; none while copying"},
      {.id = Transport::Nccl,
       .name = "nccl",
       .transport_class = HighThroughput,
       .what = "grouped ncclSend and ncclRecv, padded",
       .simulated_only = false,
       .host_blocks = false,
       .capturable = true,
       .sms_even = false,
       .sms_capped_by_created = false,
       .sms_as_asked = false,
       .limits_sms = true,
       .padded = true,
       .dedup_per_rank = true,
       .handle_slots = 2,
       .wire = WireEngine::Kernel,
       .sms = "NCCL's own blocks"},
  };
  return table;
}

const TransportInfo& transport_info(Transport transport) {
  for (const TransportInfo& info : transports())
    if (info.id == transport) return info;
  throw InternalError("a transport is missing from the table");
}

std::optional<Transport> find_transport(std::string_view name) {
  for (const TransportInfo& info : transports())
    if (info.name == name) return info.id;
  return std::nullopt;
}

std::vector<std::string_view> transport_names() {
  std::vector<std::string_view> names;
  for (const TransportInfo& info : transports()) names.push_back(info.name);
  return names;
}

bool serves(const TransportInfo& transport, TransportClass schedule_class) {
  return transport.transport_class == TransportClass::Both || transport.transport_class == schedule_class;
}

}  // namespace dbo
