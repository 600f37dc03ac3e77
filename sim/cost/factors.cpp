#include "sim/cost/factors.h"

#include "sim/base/data_file.h"
#include "sim/base/error.h"

namespace dbo {

extern const DataFile kFactorData[];
extern const unsigned kFactorData_count;

namespace {

/// Reads every factor of a section; `us` ones are given in microseconds, `gb` ones in GB/s.
class Section {
 public:
  explicit Section(const JsonRef& ref) : reader_(ref, "an object of factors") {}

  void share(std::string_view key, double& field) { field = value(key); }
  void us(std::string_view key, double& field) { field = value(key) * 1e-6; }
  void gb(std::string_view key, double& field) { field = value(key) * 1e9; }
  void done() const { reader_.done(); }

 private:
  double value(std::string_view key) {
    ObjectReader factor(reader_.require(key), "an object with \"value\" and \"source\"");
    const double number = factor.require("value").number(0, 1e6);
    const JsonRef source = factor.require("source");
    if (source.string().empty()) source.fail("must say where the value comes from");
    factor.done();
    return number;
  }

  ObjectReader reader_;
};

ComputeFactors read_compute(const JsonRef& ref) {
  Section section(ref);
  ComputeFactors f;
  section.share("hbm", f.hbm);
  section.gb("sm_gb_per_s", f.sm_bytes_per_s);
  section.share("activation_hbm", f.activation_hbm);
  section.share("overlap_loss", f.overlap_loss);
  section.share("core_overlap_loss", f.core_overlap_loss);
  section.share("beside_loss", f.beside_loss);
  section.share("core_beside_loss", f.core_beside_loss);
  section.share("fp8_gemm", f.fp8_gemm);
  section.share("bf16_gemm", f.bf16_gemm);
  section.share("grouped_gemm", f.grouped_gemm);
  section.share("masked_gemm", f.masked_gemm);
  section.share("tile_k", f.tile_k);
  section.share("tile_edge", f.tile_edge);
  section.share("decode_core", f.decode_core);
  section.share("prefill_core", f.prefill_core);
  section.us("gemm_floor_us", f.gemm_floor_s);
  section.us("core_floor_us", f.core_floor_s);
  section.us("small_floor_us", f.small_floor_s);
  section.us("top_k_sm_us", f.top_k_sm_s);
  section.us("expert_index_sm_us", f.expert_index_sm_s);
  section.us("kernel_gap_us", f.kernel_gap_s);
  section.share("tensor_link", f.tensor_link);
  section.us("tensor_floor_us", f.tensor_floor_s);
  section.done();
  return f;
}

ExchangeFactors read_exchange(const JsonRef& ref) {
  Section section(ref);
  ExchangeFactors f;
  section.share("link", f.link);
  section.share("nic", f.nic);
  section.gb("sm_near_gb_per_s", f.sm_near_bytes_per_s);
  section.gb("sm_far_gb_per_s", f.sm_far_bytes_per_s);
  section.us("near_floor_us", f.near_floor_s);
  section.us("far_floor_us", f.far_floor_s);
  section.us("send_floor_us", f.send_floor_s);
  section.us("recv_floor_us", f.recv_floor_s);
  section.share("recv_hbm", f.recv_hbm);
  section.us("notify_us", f.notify_s);
  section.us("notify_us_per_token", f.notify_s_per_token);
  section.us("peer_spread_us", f.peer_spread_s);
  section.share("beside", f.beside);
  section.share("loaded", f.loaded);
  section.share("hbm_per_byte", f.hbm_per_byte);
  section.done();
  return f;
}

TransportFactors read_transport(ObjectReader& reader, std::string_view name) {
  ObjectReader transport(reader.require(name), "an object with \"dispatch\" and \"combine\"");
  TransportFactors f;
  f.dispatch = read_exchange(transport.require("dispatch"));
  f.combine = read_exchange(transport.require("combine"));
  transport.done();
  return f;
}

}  // namespace

const TransportFactors& CostFactors::transport(Transport transport) const {
  switch (transport) {
    case Transport::Ht:
      return ht;
    case Transport::Ll:
      return ll;
    case Transport::LsaHt:
      return lsa_ht;
    case Transport::LsaLl:
      return lsa_ll;
    case Transport::CopyEngine:
      return copy_engine;
    case Transport::Nccl:
      return nccl;
  }
  throw InternalError("a transport has no factors");
}

const CostFactors& default_factors() {
  static const CostFactors factors = [] {
    DBO_CHECK(kFactorData_count == 1, "the factors are one data file");
    return read_factors(JsonRef(json_document(kFactorData[0].text, "cost factors")));
  }();
  return factors;
}

CostFactors read_factors(const JsonRef& ref) {
  ObjectReader reader(ref, "an object of factors");
  CostFactors factors;
  reader.require("about").string();
  factors.compute = read_compute(reader.require("compute"));
  factors.ht = read_transport(reader, "ht");
  factors.ll = read_transport(reader, "ll");
  factors.lsa_ht = read_transport(reader, "lsa-ht");
  factors.lsa_ll = read_transport(reader, "lsa-ll");
  factors.copy_engine = read_transport(reader, "copy-engine");
  factors.nccl = read_transport(reader, "nccl");
  reader.done();
  return factors;
}

}  // namespace dbo
