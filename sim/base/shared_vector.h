// A vector that copies share until one of them is edited: thousands of equal ranks hold one.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

namespace dbo {

/// Reads as a const std::vector. Copies may be read from several threads; one object may be edited by one.
template <typename T>
class SharedVector {
 public:
  SharedVector() = default;
  SharedVector(std::vector<T> items) : items_(std::make_shared<std::vector<T>>(std::move(items))) {}
  SharedVector(std::initializer_list<T> items) : SharedVector(std::vector<T>(items)) {}

  const std::vector<T>& items() const {
    static const std::vector<T> none;
    return items_ != nullptr ? *items_ : none;
  }
  operator const std::vector<T>&() const { return items(); }

  /// The items, from now on of this copy alone.
  std::vector<T>& edit() {
    if (items_ == nullptr || items_.use_count() > 1) items_ = std::make_shared<std::vector<T>>(items());
    return *items_;
  }

  std::size_t size() const { return items().size(); }
  bool empty() const { return items().empty(); }
  auto begin() const { return items().begin(); }
  auto end() const { return items().end(); }
  const T& operator[](std::size_t i) const { return items()[i]; }
  const T& front() const { return items().front(); }
  const T& back() const { return items().back(); }

  /// Whether both are one vector: then they are equal without a look at the items.
  bool shares(const SharedVector& other) const { return items_ == other.items_; }
  friend bool operator==(const SharedVector& a, const SharedVector& b) { return a.shares(b) || a.items() == b.items(); }

 private:
  std::shared_ptr<std::vector<T>> items_;
};

}  // namespace dbo
