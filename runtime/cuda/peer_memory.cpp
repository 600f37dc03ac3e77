#include "runtime/cuda/peer_memory.h"

#include <cuda_runtime_api.h>
#include <unistd.h>

#include <charconv>
#include <cstring>
#include <set>
#include <sstream>

#include "kernels/stand_in/stand_in.h"
#include "runtime/cuda/check.h"
#include "runtime/cuda/handles.h"
#include "runtime/cuda/process.h"
#include "sim/base/error.h"

namespace dbo::runtime {
namespace {

std::string hex(const void* data, std::size_t bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < bytes; ++i) {
    const unsigned char byte = static_cast<const unsigned char*>(data)[i];
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

void from_hex(const std::string& text, void* data, std::size_t bytes) {
  DBO_CHECK(text.size() == 2 * bytes, "a peer sent a handle of another length");
  for (std::size_t i = 0; i < bytes; ++i) {
    unsigned value = 0;
    const auto [end, code] = std::from_chars(text.data() + 2 * i, text.data() + 2 * i + 2, value, 16);
    DBO_CHECK(code == std::errc() && end == text.data() + 2 * i + 2, "a peer sent a handle that is no number");
    static_cast<unsigned char*>(data)[i] = static_cast<unsigned char>(value);
  }
}

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "?";
}

}  // namespace

Placement exchange_placement(HostGroup& group, int gpu) {
  const GpuInfo info = list_gpus().at(static_cast<std::size_t>(gpu));
  const std::string kind = info.name + ", " + std::to_string(info.sms) + " SMs";
  check_agreement(group, {{"GPU kind", kind}});
  std::ostringstream mine;
  mine << gpu << ' ' << getpid() << ' ' << host_name() << ' ' << info.bus_id;
  Placement placement;
  for (const std::string& text : group.gather(mine.str())) {
    std::istringstream in(text);
    int index = 0, process = 0;
    std::string host, bus_id;
    in >> index >> process >> host >> bus_id;
    placement.gpu.push_back(index);
    placement.process.push_back(process);
    placement.host.push_back(host);
    placement.bus_id.push_back(bus_id);
  }
  for (std::size_t a = 0; a < placement.gpu.size(); ++a) {
    for (std::size_t b = a + 1; b < placement.gpu.size(); ++b) {
      if (placement.host[a] == placement.host[b] && placement.bus_id[a] == placement.bus_id[b]) {
        throw InputError("ranks " + std::to_string(a) + " and " + std::to_string(b) + " share GPU " +
                         placement.bus_id[a] + ": kernels that wait for each other need a GPU each");
      }
    }
  }
  return placement;
}

PeerMemory::PeerMemory(HostGroup& group, const Placement& placement, std::byte* mine) {
  const auto self = static_cast<std::size_t>(group.rank());
  gpu_ = placement.gpu[self];
  cudaIpcMemHandle_t handle{};
  // Some systems have no such handles; then it matters only if a rank is in another process.
  const cudaError_t made = cudaIpcGetMemHandle(&handle, mine);
  if (made != cudaSuccess) (void)cudaGetLastError();
  const std::string text = hex(&mine, sizeof mine) + " " + (made == cudaSuccess ? hex(&handle, sizeof handle) : "-");
  const std::vector<std::string> all = group.gather(text);
  std::vector<int> here;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (rank != self && placement.process[rank] == placement.process[self]) here.push_back(placement.gpu[rank]);
  }
  enable_peer_access(gpu_, here);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const std::size_t blank = all[rank].find(' ');
    std::byte* pointer = nullptr;
    if (rank == self) {
      pointer = mine;
    } else if (placement.process[rank] == placement.process[self]) {
      from_hex(all[rank].substr(0, blank), &pointer, sizeof pointer);
    } else {
      const std::string theirs = all[rank].substr(blank + 1);
      if (theirs == "-" || placement.host[rank] != placement.host[self]) {
        throw CudaError("the memory of rank " + std::to_string(rank) + " cannot be mapped by rank " +
                        std::to_string(self) +
                        (theirs == "-" ? ": its GPU gives no handle" : ": it is on another host"));
      }
      cudaIpcMemHandle_t opened{};
      from_hex(theirs, &opened, sizeof opened);
      void* mapped = nullptr;
      DBO_CUDA_CHECK(cudaIpcOpenMemHandle(&mapped, opened, cudaIpcMemLazyEnablePeerAccess));
      opened_.push_back(mapped);
      pointer = static_cast<std::byte*>(mapped);
    }
    pointers_.push_back(pointer);
  }
  // Nobody may use a peer's memory, or free its own, before all have mapped.
  group.barrier();
}

PeerMemory::~PeerMemory() {
  for (void* mapped : opened_) (void)cudaIpcCloseMemHandle(mapped);
}

namespace {

constexpr std::size_t kBoxBytes = 64;

}  // namespace

ClockAligner::ClockAligner(HostGroup& group, const Placement& placement)
    : group_(group),
      boxes_(kBoxBytes * static_cast<std::size_t>(group.size())),
      result_(2 * sizeof(std::int64_t)),
      peers_(group, placement, boxes_.get()),
      stream_(Stream::create(true)) {}

std::vector<ClockOffset> ClockAligner::measure() {
  const int self = group_.rank();
  std::vector<ClockOffset> offsets(static_cast<std::size_t>(group_.size()));
  const auto box = [&](std::byte* base, int other) {
    return reinterpret_cast<std::uint64_t*>(base + kBoxBytes * static_cast<std::size_t>(other));
  };
  const kernels::ClockEchoArgs defaults;
  for (int asker = 0; asker < group_.size(); ++asker) {
    for (int other = asker + 1; other < group_.size(); ++other) {
      group_.barrier();
      std::string answer = "-";
      if (self == asker || self == other) {
        const int peer = self == asker ? other : asker;
        kernels::ClockEchoArgs args;
        args.box = box(boxes_.get(), peer);
        args.peer_box = box(peers_.pointers()[static_cast<std::size_t>(peer)], self);
        args.asks = self == asker;
        args.rounds_before = rounds_;
        args.result = result_.as<std::int64_t>();
        DBO_CUDA_CHECK(kernels::launch_clock_echo(args, stream_.get()));
        // Ends by its own deadline.
        DBO_CUDA_CHECK(cudaStreamSynchronize(stream_.get()));
        if (args.asks) {
          std::int64_t values[2] = {};
          DBO_CUDA_CHECK(cudaMemcpy(values, result_.get(), sizeof values, cudaMemcpyDeviceToHost));
          answer = std::to_string(values[0]) + " " + std::to_string(values[1]);
        }
      }
      const std::string told = group_.gather(answer)[static_cast<std::size_t>(asker)];
      std::istringstream in(told);
      std::int64_t offset = 0, residual = 0;
      in >> offset >> residual;
      if (residual < 0) {
        throw NcclError("the GPUs of ranks " + std::to_string(asker) + " and " + std::to_string(other) +
                        " do not see each other's writes");
      }
      if (self == asker) offsets[static_cast<std::size_t>(other)] = {offset, residual};
      if (self == other) offsets[static_cast<std::size_t>(asker)] = {-offset, residual};
    }
  }
  rounds_ += static_cast<std::uint64_t>(defaults.rounds);
  group_.barrier();
  return offsets;
}

}  // namespace dbo::runtime
