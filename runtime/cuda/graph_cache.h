// Captured steps by what they were captured for.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>

#include "runtime/cuda/handles.h"

namespace dbo::runtime {

/// A graph serves steps of one padded size, cut into one number of ubatches. Both belong to the key: the same size
/// split and un-split are two graphs.
struct GraphKey {
  std::int64_t padded_tokens = 0;
  int ubatches = 1;

  friend auto operator<=>(const GraphKey&, const GraphKey&) = default;
};

class GraphCache {
 public:
  /// Nullptr when there is none: the step runs eagerly.
  const GraphExec* find(const GraphKey& key) const {
    const auto found = graphs_.find(key);
    return found == graphs_.end() ? nullptr : &found->second;
  }
  const GraphExec& put(const GraphKey& key, GraphExec graph) {
    return graphs_.insert_or_assign(key, std::move(graph)).first->second;
  }
  std::size_t size() const { return graphs_.size(); }

 private:
  std::map<GraphKey, GraphExec> graphs_;
};

}  // namespace dbo::runtime
