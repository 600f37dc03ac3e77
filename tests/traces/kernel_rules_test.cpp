#include "traces/kernel_rules.h"

#include <doctest/doctest.h>

#include "sim/base/error.h"
#include "sim/base/files.h"
#include "tests/traces/temp_dir.h"

using namespace dbo;

TEST_CASE("kernel_rules: patterns ignore case, stand anywhere unless tied, and stars span anything") {
  CHECK(pattern_matches("flash", "void FLASH_fwd<int>()"));
  CHECK_FALSE(pattern_matches("^flash", "void flash_fwd"));
  CHECK(pattern_matches("^flash", "Flash_fwd"));
  CHECK(pattern_matches("deep_gemm*gemmtype)2", "deep_gemm::impl<1, (deep_gemm::GemmType)2>"));
  CHECK_FALSE(pattern_matches("deep_gemm*gemmtype)2", "deep_gemm::impl<1, (deep_gemm::GemmType)0>"));
  CHECK(pattern_matches("a*b*c", "xxaybzc"));
  CHECK_FALSE(pattern_matches("a*b*c", "xxacb"));
  CHECK(pattern_matches("^a*z", "abcz..."));
  CHECK_FALSE(pattern_matches("abc", "ab"));
}

TEST_CASE("kernel_rules: names of the usual libraries") {
  const KernelRules rules;
  const std::pair<const char*, Role> names[] = {
      // DeepEP, old and new namespaces, both modes.
      {"void deep_ep::internode_ll::dispatch<true, false, 3, 10, 7168>(void*, float*)", Role::DispatchLowLatency},
      {"void deep_ep::internode_ll::combine<3, 10, 7168, 9>(void*)", Role::CombineLowLatency},
      {"void deep_ep::internode_ll::clean_low_latency_buffer<128>(long*)", Role::DispatchSetup},
      {"void deep_ep::intranode::dispatch<8, 768>(int4*, float*)", Role::Dispatch},
      {"void deep_ep::intranode::combine<__nv_bfloat16, 8, 768>(__nv_bfloat16*)", Role::Combine},
      {"void deep_ep::intranode::cached_notify_combine<8>(void**)", Role::CombineSetup},
      {"void dpsk::ep::internode::notify_dispatch<false, 8>(int const*)", Role::DispatchSetup},
      {"void dpsk::ep::internode::cached_notify<false>(int, int)", Role::CommSetup},
      {"void dpsk::ep::cuda::get_dispatch_layout<256, 32, 8>(long const*)", Role::DispatchSetup},
      // pplx, NCCL, NVSHMEM, vLLM's all-reduce.
      {"a2a_dispatch_send_kernel(int)", Role::DispatchSend},
      {"void pplx::a2a_combine_recv_kernel<int>(int)", Role::CombineRecv},
      {"ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", Role::Comm},
      {"ncclKernel_AllGather_RING_LL_Sum_int8_t", Role::AllGather},
      {"ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", Role::ReduceScatter},
      {"ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", Role::AllToAll},
      {"ncclDevKernel_AllToAll(dispatch ub0 L3)", Role::Dispatch},
      {"nvshmemi_proxy_barrier", Role::Comm},
      {"void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(int)", Role::Comm},
      // Attention kernels whose names hold "combine" are no communication.
      {"void flash_fwd_mla_combine_kernel<cutlass::bfloat16_t, float, long, 512, 64, 128>(int)", Role::Attention},
      {"void flash_fwd_splitkv_mla_kernel<Flash_fwd_kernel_traits_mla<576>>(int)", Role::Attention},
      {"void cutlass::device_kernel<flash::FlashAttnFwdSm90<int>>(int)", Role::Attention},
      {"void flash::flash_fwd_splitkv_combine_kernel<int>()", Role::Attention},
      {"get_mla_metadata_kernel(int)", Role::AttentionPrep},
      {"void flashinfer::BatchDecodeWithPagedKVCacheKernel<true>()", Role::Attention},
      {"_fwd_grouped_kernel_stage1", Role::Attention},
      // GEMMs: grouped ones are experts.
      {"void deep_gemm::fp8_gemm_kernel<4096u, 7168u, 128u, (deep_gemm::GemmType)2>(float*)", Role::Experts},
      {"void deep_gemm::fp8_gemm_kernel<4096u, 7168u, 128u, (deep_gemm::GemmType)0>(float*)", Role::Gemm},
      {"void cutlass::device_kernel<dpsk::grouped_gemm::cuda::m_grouped_fp8_ptp128c::GemmKernel>(int)", Role::Experts},
      {"void cutlass::device_kernel<dpsk::grouped_gemm::cuda::fp8_ptp128c::GemmKernel>(int)", Role::Gemm},
      {"fused_moe_kernel", Role::Experts},
      {"nvjet_tst_128x64_64x10_1x2_h_bz_TNT", Role::Gemm},
      {"ampere_sgemm_128x64_nn", Role::Gemm},
      // Around them.
      {"void vllm::moe::topkGatingSoftmax<8, 128>(float const*)", Role::Router},
      {"void vllm::moe::moe_align_block_size_kernel<int>(int*)", Role::ExpertsAux},
      {"_silu_mul_fp8_quant_deep_gemm", Role::ExpertsAux},
      {"void vllm::rms_norm_kernel<c10::BFloat16>(int)", Role::Norm},
      {"void flashinfer::norm::FusedAddRMSNormKernel<8u>(int)", Role::Norm},
      {"void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*)", Role::AttentionPrep},
      {"void vllm::concat_and_cache_mla_kernel<int>()", Role::AttentionPrep},
      {"void at::native::vectorized_gather_kernel<16, long>(char*)", Role::Embed},
      {"void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int)", Role::Elementwise},
      {"Memcpy DtoD (Device -> Device)", Role::Memory},
      {"my_very_own_kernel", Role::Unknown},
  };
  for (const auto& [name, role] : names)
    CHECK_MESSAGE(rules.role(name) == role, name << " is " << role_name(rules.role(name)));
}

TEST_CASE("kernel_rules: named ranges") {
  const KernelRules rules;
  REQUIRE(rules.range("attn(F)"));
  CHECK(rules.range("attn(F)")->attention_whole);
  CHECK(rules.range("dispatch(B)")->kind == OpKind::D);
  CHECK(rules.range("combine(F)")->kind == OpKind::C);
  CHECK(rules.range("mlp(W)")->kind == OpKind::MLP);
  CHECK(rules.range("model.layers.3.mlp.shared_experts")->kind == OpKind::S);
  CHECK(rules.range("model.layers.3.mlp.experts")->kind == OpKind::MLP);
  CHECK(rules.range("model.layers.3.mlp.gate")->kind == OpKind::A1);
  CHECK_FALSE(rules.range("ProfilerStep#4"));
}

TEST_CASE("kernel_rules: a user's rules come first, and mistakes in them are named") {
  const dbo::testing::TempDir dir;
  write_file(dir.file("r.json"),
             R"({"kernels": [{"role": "dispatch", "match": ["my_very_own"], "except": ["not_this"]}]})");
  KernelRules rules;
  rules.add_file(dir.file("r.json"));
  CHECK(rules.role("my_very_own_kernel") == Role::Dispatch);
  CHECK(rules.role("my_very_own_not_this") == Role::Unknown);
  CHECK(rules.role("fused_moe_kernel") == Role::Experts);
  const auto error_of = [&](const std::string& text) {
    write_file(dir.file("bad.json"), text);
    try {
      KernelRules().add_file(dir.file("bad.json"));
      return std::string("no error");
    } catch (const InputError& error) {
      return std::string(error.what()).substr(dir.file("bad.json").size());
    }
  };
  CHECK(error_of(R"({"kernels": [{"role": "dispach", "match": ["x"]}]})").find("did you mean \"dispatch\"") !=
        std::string::npos);
  CHECK(error_of(R"({"kernels": [{"role": "dispatch", "match": [""]}]})")
            .find(": /kernels/0/match/0: must not be empty") == 0);
  CHECK(error_of(R"({"kernel": []})").find("/kernel") != std::string::npos);
}
