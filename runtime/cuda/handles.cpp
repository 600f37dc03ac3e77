#include "runtime/cuda/handles.h"

#include <atomic>

#include "runtime/cuda/check.h"

namespace dbo::runtime {

DeviceGuard::DeviceGuard(int gpu) {
  DBO_CUDA_CHECK(cudaGetDevice(&before_));
  DBO_CUDA_CHECK(cudaSetDevice(gpu));
}

DeviceGuard::~DeviceGuard() {
  (void)cudaSetDevice(before_);
}

Stream Stream::create(bool high_priority) {
  int least = 0, greatest = 0;
  DBO_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  Stream stream;
  DBO_CUDA_CHECK(
      cudaStreamCreateWithPriority(&stream.stream_, cudaStreamNonBlocking, high_priority ? greatest : least));
  return stream;
}

Stream Stream::adopt(cudaStream_t stream) {
  Stream owner;
  owner.stream_ = stream;
  return owner;
}

Stream& Stream::operator=(Stream&& other) noexcept {
  if (this != &other) {
    reset();
    stream_ = std::exchange(other.stream_, nullptr);
  }
  return *this;
}

void Stream::reset() {
  if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
  stream_ = nullptr;
}

Event Event::create(bool timing) {
  Event event;
  DBO_CUDA_CHECK(cudaEventCreateWithFlags(&event.event_, timing ? cudaEventDefault : cudaEventDisableTiming));
  return event;
}

Event& Event::operator=(Event&& other) noexcept {
  if (this != &other) {
    reset();
    event_ = std::exchange(other.event_, nullptr);
  }
  return *this;
}

void Event::reset() {
  if (event_ != nullptr) (void)cudaEventDestroy(event_);
  event_ = nullptr;
}

DeviceBuffer::DeviceBuffer(std::size_t bytes) : bytes_(bytes) {
  if (bytes == 0) return;
  DBO_CUDA_CHECK(cudaMalloc(&data_, bytes));
  DBO_CUDA_CHECK(cudaMemset(data_, 0, bytes));
  // cudaMemset of device memory returns before it is done, and our streams do not wait for the default one.
  DBO_CUDA_CHECK(cudaDeviceSynchronize());
}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  if (this != &other) {
    reset();
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

void DeviceBuffer::reset() {
  if (data_ != nullptr) (void)cudaFree(data_);
  data_ = nullptr;
}

HostWords::HostWords(std::size_t count) : count_(count) {
  void* host = nullptr;
  DBO_CUDA_CHECK(cudaHostAlloc(&host, count * sizeof(std::uint64_t), cudaHostAllocMapped | cudaHostAllocPortable));
  host_ = static_cast<std::uint64_t*>(host);
  for (std::size_t i = 0; i < count; ++i) host_[i] = 0;
  void* device = nullptr;
  DBO_CUDA_CHECK(cudaHostGetDevicePointer(&device, host, 0));
  device_ = static_cast<std::uint64_t*>(device);
}

HostWords& HostWords::operator=(HostWords&& other) noexcept {
  if (this != &other) {
    reset();
    host_ = std::exchange(other.host_, nullptr);
    device_ = std::exchange(other.device_, nullptr);
    count_ = std::exchange(other.count_, 0);
  }
  return *this;
}

std::uint64_t HostWords::load(std::size_t index) const {
  return std::atomic_ref<std::uint64_t>(host_[index]).load(std::memory_order_acquire);
}

void HostWords::reset() {
  if (host_ != nullptr) (void)cudaFreeHost(host_);
  host_ = nullptr;
}

Graph Graph::adopt(cudaGraph_t graph) {
  Graph owner;
  owner.graph_ = graph;
  return owner;
}

Graph& Graph::operator=(Graph&& other) noexcept {
  if (this != &other) {
    reset();
    graph_ = std::exchange(other.graph_, nullptr);
  }
  return *this;
}

void Graph::reset() {
  if (graph_ != nullptr) (void)cudaGraphDestroy(graph_);
  graph_ = nullptr;
}

GraphExec GraphExec::create(const Graph& graph, cudaStream_t upload_on) {
  GraphExec exec;
  // A kernel keeps the priority of the stream it was captured on: without the flag all would get the launch stream's.
  DBO_CUDA_CHECK(cudaGraphInstantiate(&exec.exec_, graph.get(), cudaGraphInstantiateFlagUseNodePriority));
  DBO_CUDA_CHECK(cudaGraphUpload(exec.exec_, upload_on));
  return exec;
}

GraphExec& GraphExec::operator=(GraphExec&& other) noexcept {
  if (this != &other) {
    reset();
    exec_ = std::exchange(other.exec_, nullptr);
  }
  return *this;
}

void GraphExec::reset() {
  if (exec_ != nullptr) (void)cudaGraphExecDestroy(exec_);
  exec_ = nullptr;
}

}  // namespace dbo::runtime
