#include "sim/base/transport.h"

#include <doctest/doctest.h>

#include "sim/base/op_kind.h"

using namespace dbo;

TEST_CASE("transport: names and ids are one to one, and only ht cannot be captured") {
  for (const TransportInfo& info : transports()) {
    CHECK(find_transport(info.name) == info.id);
    CHECK(&transport_info(info.id) == &info);
    CHECK(info.capturable == (info.name != "ht"));
    CHECK(info.host_blocks == (info.name == "ht"));
  }
  CHECK(!find_transport("nvshmem"));
}

TEST_CASE("transport: ll halves serve low latency, one-kernel transports high throughput, copy-engine both") {
  const auto ll = [](const char* name) {
    return serves(transport_info(*find_transport(name)), TransportClass::LowLatency);
  };
  const auto ht = [](const char* name) {
    return serves(transport_info(*find_transport(name)), TransportClass::HighThroughput);
  };
  CHECK((ll("ll") && ll("lsa-ll") && ll("copy-engine")));
  CHECK((!ll("ht") && !ll("lsa-ht") && !ll("nccl")));
  CHECK((ht("ht") && ht("lsa-ht") && ht("nccl") && ht("copy-engine")));
  CHECK((!ht("ll") && !ht("lsa-ll")));
}

TEST_CASE("op_kind: names and kinds are one to one") {
  for (int i = 0; i < kOpKinds; ++i) {
    const auto kind = static_cast<OpKind>(i);
    CHECK(find_op_kind(op_name(kind)) == kind);
  }
  CHECK(op_name(OpKind::CCopy) == "C.copy");
  CHECK(!find_op_kind("D.done"));
}
