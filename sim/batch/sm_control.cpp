#include "sim/batch/sm_control.h"

#include <algorithm>

namespace dbo {

SmShare share_sms(const DecideSettings& settings, bool split) {
  const TransportInfo& transport = transport_info(settings.transport);
  SmShare share{.comm = 0, .compute = settings.gpu_sms, .idle = 0, .comm_kernel = 0};
  if (!transport.limits_sms) return share;
  const auto kernel_sms = [&](int asked) {
    return transport.sms_capped_by_created ? std::min(asked, settings.comm_sms_created) : asked;
  };
  // Nobody asks the kernels for less than they were created with where nothing is limited.
  const bool limited = split && settings.comm_sms > 0 && settings.sm_control != SmControl::None &&
                       !(settings.amd && settings.transport == Transport::Ht);
  if (!limited) {
    const bool asked = split && settings.comm_sms > 0;
    share.comm_kernel = kernel_sms(asked ? settings.comm_sms : settings.comm_sms_created);
    return share;
  }
  int pool = settings.comm_sms;
  if (settings.sm_control == SmControl::GreenContext) {
    const int granularity = settings.green_context_granularity;
    pool = std::max((pool + granularity - 1) / granularity * granularity, settings.green_context_minimum);
  }
  share.comm = share.comm_kernel = kernel_sms(settings.comm_sms);
  share.compute = settings.gpu_sms - pool;
  share.idle = pool - share.comm;
  return share;
}

}  // namespace dbo
