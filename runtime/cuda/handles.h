// Owners of CUDA objects: move-only, explicit `get()`, freed on the GPU they were made on. Destructors ignore errors:
// they also run while a failure unwinds.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace dbo::runtime {

/// Selects a GPU for the calling thread while it lives, then the one before.
class DeviceGuard {
 public:
  explicit DeviceGuard(int gpu);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_ = 0;
};

/// A stream that never synchronises with the default one.
class Stream {
 public:
  Stream() = default;
  /// On the current GPU; `high_priority`: its kernels' blocks are scheduled before others'.
  static Stream create(bool high_priority);
  /// Takes over a stream made by other means, for example in a green context.
  static Stream adopt(cudaStream_t stream);
  ~Stream() { reset(); }
  Stream(Stream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  Stream& operator=(Stream&& other) noexcept;

  cudaStream_t get() const { return stream_; }

 private:
  void reset();
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  Event() = default;
  /// On the current GPU. Without `timing` it costs less and only orders.
  static Event create(bool timing);
  ~Event() { reset(); }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept;

  cudaEvent_t get() const { return event_; }

 private:
  void reset();
  cudaEvent_t event_ = nullptr;
};

/// Device memory of the current GPU.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  /// Zeroed. `bytes` 0 gives an empty buffer.
  explicit DeviceBuffer(std::size_t bytes);
  ~DeviceBuffer() { reset(); }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;

  std::byte* get() const { return static_cast<std::byte*>(data_); }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  std::size_t bytes() const { return bytes_; }

 private:
  void reset();
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// 64-bit words in host memory that every GPU can write and the host reads while kernels run. Zero at first.
class HostWords {
 public:
  HostWords() = default;
  explicit HostWords(std::size_t count);
  ~HostWords() { reset(); }
  HostWords(HostWords&& other) noexcept
      : host_(std::exchange(other.host_, nullptr)),
        device_(std::exchange(other.device_, nullptr)),
        count_(std::exchange(other.count_, 0)) {}
  HostWords& operator=(HostWords&& other) noexcept;

  std::uint64_t load(std::size_t index) const;
  std::uint64_t* device(std::size_t index) const { return device_ + index; }
  std::size_t count() const { return count_; }

 private:
  void reset();
  std::uint64_t* host_ = nullptr;
  std::uint64_t* device_ = nullptr;
  std::size_t count_ = 0;
};

class Graph {
 public:
  Graph() = default;
  static Graph adopt(cudaGraph_t graph);
  ~Graph() { reset(); }
  Graph(Graph&& other) noexcept : graph_(std::exchange(other.graph_, nullptr)) {}
  Graph& operator=(Graph&& other) noexcept;

  cudaGraph_t get() const { return graph_; }
  explicit operator bool() const { return graph_ != nullptr; }

 private:
  void reset();
  cudaGraph_t graph_ = nullptr;
};

class GraphExec {
 public:
  GraphExec() = default;
  /// Instantiates and uploads, so that the first launch costs what every other does.
  static GraphExec create(const Graph& graph, cudaStream_t upload_on);
  ~GraphExec() { reset(); }
  GraphExec(GraphExec&& other) noexcept : exec_(std::exchange(other.exec_, nullptr)) {}
  GraphExec& operator=(GraphExec&& other) noexcept;

  cudaGraphExec_t get() const { return exec_; }
  explicit operator bool() const { return exec_ != nullptr; }

 private:
  void reset();
  cudaGraphExec_t exec_ = nullptr;
};

}  // namespace dbo::runtime
