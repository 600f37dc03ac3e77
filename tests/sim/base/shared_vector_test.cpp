#include "sim/base/shared_vector.h"

#include <doctest/doctest.h>

using dbo::SharedVector;

TEST_CASE("shared vector: copies are one until one of them is edited") {
  SharedVector<int> first{1, 2, 3};
  SharedVector<int> second = first;
  CHECK(second.shares(first));
  second.edit().push_back(4);
  CHECK_FALSE(second.shares(first));
  CHECK(first.items() == std::vector<int>{1, 2, 3});
  CHECK(second.items() == std::vector<int>{1, 2, 3, 4});
  // Alone it is edited in place.
  const int* before = second.items().data();
  second.edit()[0] = 5;
  CHECK(second.items().data() == before);
  CHECK(second.front() == 5);
}

TEST_CASE("shared vector: equal items are equal, shared or not, and nothing is an empty vector") {
  const SharedVector<int> a{1, 2}, b{1, 2}, c{2, 1}, none;
  CHECK(a == b);
  CHECK_FALSE(a.shares(b));
  CHECK(a != c);
  CHECK(none.empty());
  CHECK(none == SharedVector<int>(std::vector<int>{}));
}
