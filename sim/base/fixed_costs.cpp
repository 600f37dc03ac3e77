#include "sim/base/fixed_costs.h"

namespace dbo {
namespace {

constexpr double kMaxUs = 1e9;

void read_us(ObjectReader& reader, std::string_view key, Ns& field) {
  if (const auto value = reader.find(key)) field = ns_from_us(value->number(0, kMaxUs));
}

FixedCosts::Exchange read_exchange(const JsonRef& ref, bool combine) {
  ObjectReader reader(ref, "an object of durations");
  FixedCosts::Exchange exchange;
  read_us(reader, "send_us", exchange.send);
  read_us(reader, "wire_us", exchange.wire);
  read_us(reader, "recv_us", exchange.recv);
  if (combine) read_us(reader, "copy_us", exchange.copy);
  reader.done();
  return exchange;
}

}  // namespace

FixedCosts read_fixed_costs(ObjectReader& reader) {
  FixedCosts costs;
  read_us(reader, "A0_us", costs.a0);
  read_us(reader, "A1_us", costs.a1);
  read_us(reader, "MLP_us", costs.mlp);
  read_us(reader, "S_us", costs.s);
  read_us(reader, "FFN_us", costs.ffn);
  if (const auto value = reader.find("D")) costs.dispatch = read_exchange(*value, false);
  if (const auto value = reader.find("C")) costs.combine = read_exchange(*value, true);
  read_us(reader, "host_us", costs.host);
  return costs;
}

}  // namespace dbo
