// The transports: how dispatch and combine move data, as one table.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace dbo {

enum class Transport : std::uint8_t { Ht, Ll, LsaHt, LsaLl, CopyEngine, Nccl };

/// Which schedules a transport serves: send and receive halves (low latency), one comm op (high throughput), or both.
enum class TransportClass : std::uint8_t { LowLatency, HighThroughput, Both };

/// Who moves the data while it is on the wire, and so which SMs it takes.
enum class WireEngine : std::uint8_t {
  SendKernelOrNic,  ///< between nodes the NIC alone; inside a node the send kernel's own stores
  Kernel,           ///< the comm kernel's SMs for as long as it runs
  CopyEngine        ///< copy engines: no SM
};

struct TransportInfo {
  Transport id;
  std::string_view name;
  TransportClass transport_class;
  std::string_view what;       ///< one line for people
  bool simulated_only;         ///< no implementation here to replay
  bool host_blocks;            ///< the dispatch launch returns only when the counts are known
  bool capturable;             ///< may be part of a CUDA graph
  bool sms_even;               ///< its SM count must be even
  bool sms_capped_by_created;  ///< can only be lowered from `comm_sms_created`
  bool sms_as_asked;           ///< its kernel has just the blocks it is told: none is none, not a number of its own
  bool limits_sms;             ///< sets SMs aside for communication at all (low latency does not)
  bool padded;                 ///< sends fixed-size slots, not just the tokens
  bool dedup_per_rank;         ///< a token goes once to a rank, however many of its experts are there
  int handle_slots;            ///< calls that may be un-received (low latency) or have live handles (0: no limit)
  WireEngine wire;
  std::string_view sms;  ///< one line for people
};

const std::vector<TransportInfo>& transports();
const TransportInfo& transport_info(Transport transport);
std::optional<Transport> find_transport(std::string_view name);
std::vector<std::string_view> transport_names();

/// Whether a schedule of the class (LowLatency or HighThroughput) may use the transport.
bool serves(const TransportInfo& transport, TransportClass schedule_class);

}  // namespace dbo
