#include "runtime/cuda/cupti_tracer.h"

#include <cupti.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "runtime/cuda/check.h"
#include "sim/base/error.h"

namespace dbo::runtime {
namespace {

// Several records fit; CUPTI asks for another buffer when one is full.
constexpr std::size_t kBufferBytes = 4u << 20;

// Not KERNEL, which serialises, and not GRAPH_TRACE, which would give one record a graph. Correlation ids of eager
// launches come with the records of the calls.
constexpr CUpti_ActivityKind kKinds[] = {
    CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
    CUPTI_ACTIVITY_KIND_MEMCPY,
    CUPTI_ACTIVITY_KIND_MEMCPY2,
    CUPTI_ACTIVITY_KIND_MEMSET,
    CUPTI_ACTIVITY_KIND_RUNTIME,
    CUPTI_ACTIVITY_KIND_DRIVER,
    CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION,
};

// The session CUPTI's callbacks, which have no argument for it, report to.
std::mutex active_mutex;
CuptiTracer* active = nullptr;

constexpr std::uint64_t make_key(int rank, std::uint32_t plan_op) {
  return (static_cast<std::uint64_t>(rank) + 1) << 32 | plan_op;
}

void read_record(CuptiTracer& tracer, const CUpti_Activity* record) {
  switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
      const auto* kernel = reinterpret_cast<const CUpti_ActivityKernel10*>(record);
      tracer.add({static_cast<std::int64_t>(kernel->start), static_cast<std::int64_t>(kernel->end), kernel->graphNodeId,
                  kernel->correlationId, kernel->deviceId, kernel->gridX * kernel->gridY * kernel->gridZ,
                  kernel->name});
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
      const auto* copy = reinterpret_cast<const CUpti_ActivityMemcpy6*>(record);
      tracer.add({static_cast<std::int64_t>(copy->start), static_cast<std::int64_t>(copy->end), copy->graphNodeId,
                  copy->correlationId, copy->deviceId, 0,
                  copy->copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_DTOH ? "copy to host" : "copy"});
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY2: {
      const auto* copy = reinterpret_cast<const CUpti_ActivityMemcpyPtoP4*>(record);
      tracer.add({static_cast<std::int64_t>(copy->start), static_cast<std::int64_t>(copy->end), copy->graphNodeId,
                  copy->correlationId, copy->deviceId, 0, "copy"});
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
      const auto* fill = reinterpret_cast<const CUpti_ActivityMemset4*>(record);
      tracer.add({static_cast<std::int64_t>(fill->start), static_cast<std::int64_t>(fill->end), fill->graphNodeId,
                  fill->correlationId, fill->deviceId, 0, "fill"});
      break;
    }
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: {
      const auto* external = reinterpret_cast<const CUpti_ActivityExternalCorrelation*>(record);
      tracer.add_external(external->externalId, external->correlationId);
      break;
    }
    default:
      break;
  }
}

void CUPTIAPI buffer_requested(std::uint8_t** buffer, std::size_t* size, std::size_t* most_records) {
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(8, kBufferBytes));
  *size = *buffer == nullptr ? 0 : kBufferBytes;
  *most_records = 0;
}

void CUPTIAPI buffer_completed(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t valid_bytes) {
  const std::lock_guard lock(active_mutex);
  CUpti_Activity* record = nullptr;
  while (active != nullptr && cuptiActivityGetNextRecord(buffer, valid_bytes, &record) == CUPTI_SUCCESS) {
    read_record(*active, record);
  }
  std::free(buffer);
}

void CUPTIAPI resource_callback(void* tracer, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void* data) {
  if (domain != CUPTI_CB_DOMAIN_RESOURCE || id != CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED) return;
  const auto* resource = static_cast<const CUpti_ResourceData*>(data);
  const auto* graph = static_cast<const CUpti_GraphData*>(resource->resourceDescriptor);
  std::uint64_t original = 0, clone = 0;
  if (cuptiGetGraphNodeId(graph->originalNode, &original) != CUPTI_SUCCESS) return;
  if (cuptiGetGraphNodeId(graph->node, &clone) != CUPTI_SUCCESS) return;
  static_cast<CuptiTracer*>(tracer)->node_cloned(original, clone);
}

/// The nodes a stream in a capture depends on: what its next launch comes behind.
std::vector<cudaGraphNode_t> capture_frontier(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaGraphNode_t* nodes = nullptr;
  const cudaGraphEdgeData* edges = nullptr;
  std::size_t count = 0;
  DBO_CUDA_CHECK(cudaStreamGetCaptureInfo(stream, &status, nullptr, nullptr, &nodes, &edges, &count));
  DBO_CHECK(status == cudaStreamCaptureStatusActive, "a lane left the capture it is traced in");
  return {nodes, nodes + count};
}

std::vector<cudaGraphNode_t> dependencies(cudaGraphNode_t node) {
  std::size_t count = 0;
  DBO_CUDA_CHECK(cudaGraphNodeGetDependencies(node, nullptr, nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count);
  if (count == 0) return nodes;
  // Edges of programmatic launches carry data that has to be asked for, or the call fails.
  std::vector<cudaGraphEdgeData> edges(count);
  DBO_CUDA_CHECK(cudaGraphNodeGetDependencies(node, nodes.data(), edges.data(), &count));
  return nodes;
}

}  // namespace

/// Claims what is launched between `before_op` and `after_op` for the op: eagerly by an external correlation id of the
/// launching thread, in a capture by the graph nodes between the stream's frontier before and after.
class CuptiTracer::Observer final : public OpObserver {
 public:
  Observer(CuptiTracer& tracer, int rank, std::size_t op_count) : ops(op_count), tracer_(tracer), rank_(rank) {}

  void begin_step(cudaStream_t, bool) override {}

  void before_op(std::uint32_t plan_op, cudaStream_t stream, bool capturing) override {
    if (capturing) {
      frontier_ = capture_frontier(stream);
    } else {
      DBO_CUPTI_CHECK(
          cuptiActivityPushExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, make_key(rank_, plan_op)));
    }
  }

  void after_op(std::uint32_t plan_op, cudaStream_t stream, bool capturing) override {
    if (!capturing) {
      std::uint64_t popped = 0;
      DBO_CUPTI_CHECK(cuptiActivityPopExternalCorrelationId(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, &popped));
      return;
    }
    std::set<cudaGraphNode_t> seen(frontier_.begin(), frontier_.end());
    std::vector<cudaGraphNode_t> open = capture_frontier(stream);
    while (!open.empty()) {
      const cudaGraphNode_t node = open.back();
      open.pop_back();
      if (!seen.insert(node).second) continue;
      std::uint64_t id = 0;
      DBO_CUPTI_CHECK(cuptiGetGraphNodeId(node, &id));
      {
        const std::lock_guard lock(tracer_.mutex_);
        tracer_.key_of_node_[id] = make_key(rank_, plan_op);
      }
      for (const cudaGraphNode_t before : dependencies(node)) open.push_back(before);
    }
  }

  const std::size_t ops;

 private:
  CuptiTracer& tracer_;
  int rank_;
  std::vector<cudaGraphNode_t> frontier_;
};

CuptiTracer::CuptiTracer() {
  {
    const std::lock_guard lock(active_mutex);
    DBO_CHECK(active == nullptr, "one CUPTI session at a time");
    active = this;
  }
  CUpti_SubscriberHandle subscriber = nullptr;
  DBO_CUPTI_CHECK(cuptiSubscribe(&subscriber, resource_callback, this));
  subscriber_ = subscriber;
  DBO_CUPTI_CHECK(cuptiEnableCallback(1, subscriber, CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_GRAPHNODE_CLONED));
  DBO_CUPTI_CHECK(cuptiActivityRegisterCallbacks(buffer_requested, buffer_completed));
  for (const CUpti_ActivityKind kind : kKinds) DBO_CUPTI_CHECK(cuptiActivityEnable(kind));
}

CuptiTracer::~CuptiTracer() {
  (void)cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  for (const CUpti_ActivityKind kind : kKinds) (void)cuptiActivityDisable(kind);
  (void)cuptiUnsubscribe(static_cast<CUpti_SubscriberHandle>(subscriber_));
  const std::lock_guard lock(active_mutex);
  active = nullptr;
}

OpObserver& CuptiTracer::observer(int rank, std::size_t ops) {
  const std::lock_guard lock(mutex_);
  auto& slot = observers_[rank];
  if (slot == nullptr || slot->ops != ops) slot = std::make_unique<Observer>(*this, rank, ops);
  return *slot;
}

void CuptiTracer::add(const Activity& activity) {
  const std::lock_guard lock(mutex_);
  activities_.push_back(activity);
}

void CuptiTracer::add_external(std::uint64_t key, std::uint32_t correlation) {
  const std::lock_guard lock(mutex_);
  key_of_correlation_[correlation] = key;
}

void CuptiTracer::node_cloned(std::uint64_t original, std::uint64_t clone) {
  const std::lock_guard lock(mutex_);
  const auto found = key_of_node_.find(original);
  if (found != key_of_node_.end()) key_of_node_[clone] = found->second;
}

void CuptiTracer::flush() {
  // CUPTI completes a kernel's record when the host synchronises with it; polling an event does not count.
  DBO_CUDA_CHECK(cudaDeviceSynchronize());
  DBO_CUPTI_CHECK(cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED));
}

void CuptiTracer::clear() {
  flush();
  const std::lock_guard lock(mutex_);
  activities_.clear();
  key_of_correlation_.clear();
}

std::vector<OpTime> CuptiTracer::times(int rank) {
  flush();
  const std::lock_guard lock(mutex_);
  const auto observer = observers_.find(rank);
  DBO_CHECK(observer != observers_.end(), "a rank that was not traced");
  std::vector<OpTime> times(observer->second->ops);
  unclaimed_.clear();
  for (const Activity& activity : activities_) {
    if (activity.end_ns == 0) continue;  // flushed before it was complete
    std::uint64_t key = 0;
    if (activity.graph_node != 0) {
      const auto found = key_of_node_.find(activity.graph_node);
      if (found != key_of_node_.end()) key = found->second;
    } else {
      const auto found = key_of_correlation_.find(activity.correlation);
      if (found != key_of_correlation_.end()) key = found->second;
    }
    if (key == 0) {
      ++unclaimed_[activity.name == nullptr ? "" : activity.name];
      continue;
    }
    if (static_cast<int>(key >> 32) - 1 != rank) continue;
    OpTime& op = times.at(static_cast<std::uint32_t>(key));
    op.begin_ns = op.ran ? std::min(op.begin_ns, activity.begin_ns) : activity.begin_ns;
    op.end_ns = op.ran ? std::max(op.end_ns, activity.end_ns) : activity.end_ns;
    op.sms = std::max(op.sms, activity.blocks);
    op.ran = true;
  }
  return times;
}

}  // namespace dbo::runtime
