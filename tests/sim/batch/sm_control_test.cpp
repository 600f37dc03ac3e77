#include "sim/batch/sm_control.h"

#include <doctest/doctest.h>

using namespace dbo;

namespace {
DecideSettings with(Transport transport, int comm_sms) {
  DecideSettings settings;
  settings.transport = transport;
  settings.comm_sms = comm_sms;
  return settings;
}
void check(const SmShare& share, int comm, int compute, int idle, int kernel) {
  CHECK(share.comm == comm);
  CHECK(share.compute == compute);
  CHECK(share.idle == idle);
  CHECK(share.comm_kernel == kernel);
}
}  // namespace

TEST_CASE("sm_control: DeepEP high throughput sets SMs aside and only shrinks (T15c)") {
  check(share_sms(with(Transport::Ht, 20), true), 20, 112, 0, 20);
  check(share_sms(with(Transport::Ht, 16), true), 16, 116, 0, 16);
  // Compute gives up 24, the kernels keep the 20 they were created with.
  check(share_sms(with(Transport::Ht, 24), true), 20, 108, 4, 20);
  check(share_sms(with(Transport::Ht, 25), true), 20, 107, 5, 20);
  // 0: nothing is limited; the kernels still take theirs.
  check(share_sms(with(Transport::Ht, 0), true), 0, 132, 0, 20);
}

TEST_CASE("sm_control: low latency, an un-split step and AMD's high throughput set none aside") {
  for (const Transport transport : {Transport::Ll, Transport::LsaLl, Transport::CopyEngine})
    check(share_sms(with(transport, 20), true), 0, 132, 0, 0);
  check(share_sms(with(Transport::Ht, 16), false), 0, 132, 0, 20);
  DecideSettings amd = with(Transport::Ht, 64);
  amd.amd = true;
  amd.gpu_sms = 304;
  check(share_sms(amd, true), 0, 304, 0, 20);
}

TEST_CASE("sm_control: our kernels take the block count they are given") {
  check(share_sms(with(Transport::LsaHt, 33), true), 33, 99, 0, 33);
  check(share_sms(with(Transport::Nccl, 16), true), 16, 116, 0, 16);
}

TEST_CASE("sm_control: green contexts come in the GPU's granularity, none shares everything") {
  DecideSettings settings = with(Transport::LsaHt, 20);
  settings.sm_control = SmControl::GreenContext;
  check(share_sms(settings, true), 20, 108, 4, 20);
  settings.comm_sms = 16;
  check(share_sms(settings, true), 16, 116, 0, 16);
  settings.sm_control = SmControl::None;
  check(share_sms(settings, true), 0, 132, 0, 16);
}
