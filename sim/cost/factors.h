// Achieved-rate factors: what kernels reach of the vendor's rates, and what they cost at least. Data with a source for
// each (sim/cost/data/factors.json), fitted to published measurements.
#pragma once

#include "sim/base/json_reader.h"
#include "sim/base/transport.h"

namespace dbo {

struct ComputeFactors {
  double hbm = 0;                ///< share of the HBM rate that streaming kernels reach
  double sm_bytes_per_s = 0;     ///< most one SM moves to or from memory
  double activation_hbm = 0;     ///< the same for SwiGLU with its quantisation
  double overlap_loss = 0;       ///< share of the shorter of arithmetic and memory time that the longer does not hide
  double core_overlap_loss = 0;  ///< the same for attention cores
  double beside_loss = 0, core_beside_loss = 0;  ///< both while a comm kernel runs beside: output-heavy GEMMs suffer
  double fp8_gemm = 0, bf16_gemm = 0;            ///< share of the dense peak, large tiles
  double grouped_gemm = 0;                       ///< contiguous grouped GEMM, fp8
  double masked_gemm = 0;                        ///< masked grouped GEMM, fp8
  double tile_k = 0;                             ///< start and end of an output tile, in elements of k
  double tile_edge = 0;                          ///< loss of small tiles: times 1 + tile_edge * (1/rows + 1/columns)
  double decode_core = 0, prefill_core = 0;      ///< attention cores, share of the bf16 peak
  double gemm_floor_s = 0, core_floor_s = 0, small_floor_s = 0;  ///< shortest kernel of each sort
  double top_k_sm_s = 0, expert_index_sm_s = 0;                  ///< SM time a token
  double kernel_gap_s = 0;                                       ///< between kernels of one op
  double tensor_link = 0, tensor_floor_s = 0;                    ///< tensor-parallel collectives
};

/// One direction (dispatch or combine) of one transport. Rates are shares of the link's or NIC's, or bytes a second.
struct ExchangeFactors {
  double link = 0;                 ///< share of the NVLink rate that all SMs together reach
  double nic = 0;                  ///< share of the NIC rate
  double sm_near_bytes_per_s = 0;  ///< one SM of the kernel that moves data: bytes it handles inside the NVLink domain
  double sm_far_bytes_per_s = 0;   ///< the same for bytes that cross the NIC, on top
  double near_floor_s = 0;         ///< an exchange without data inside one domain: comm kernel, or a wire's latency
  double far_floor_s = 0;          ///< the same across domains
  double send_floor_s = 0, recv_floor_s = 0;  ///< halves only: kernels without data
  double recv_hbm = 0;                        ///< receive kernel: share of the HBM rate it copies at
  double notify_s = 0;                        ///< until the host knows the counts, and for each token sent
  double notify_s_per_token = 0;
  /// Spread (standard deviation) of the instants at which equal ranks of several domains come to a call when they last
  /// met 1 ms before; it grows with the root of that time.
  double peer_spread_s = 0;
  double beside = 0;        ///< comm kernel: times longer while compute runs beside it
  double loaded = 0;        ///< comm kernel: how much longer while memory is full beside it; then compute loses no more
  double hbm_per_byte = 0;  ///< HBM traffic for each byte on the wire, both sides together
};

struct TransportFactors {
  ExchangeFactors dispatch, combine;
};

struct CostFactors {
  ComputeFactors compute;
  TransportFactors ht, ll, lsa_ht, lsa_ll, copy_engine, nccl;

  const TransportFactors& transport(Transport transport) const;
};

/// The factors that ship.
const CostFactors& default_factors();

/// Reads {"compute": {NAME: {"value", "source"}}, "ht": {"dispatch": {...}, "combine": {...}}, ...}; every factor must
/// be there with a source.
CostFactors read_factors(const JsonRef& ref);

}  // namespace dbo
