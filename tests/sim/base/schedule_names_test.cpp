#include "sim/base/schedule_names.h"

#include <doctest/doctest.h>

using namespace dbo;

TEST_CASE("schedule_names: every schedule's default transport serves its class, and names differ") {
  for (const ScheduleName& schedule : schedule_names()) {
    CAPTURE(schedule.name);
    if (schedule.schedule_class != TransportClass::Both)
      CHECK(serves(transport_info(schedule.default_transport), schedule.schedule_class));
    CHECK(find_schedule_name(schedule.name) == &schedule);
  }
  CHECK(find_schedule_name("vllm-lt") == nullptr);
}
