// The warpgroup product of wgmma.cuh for every width that is a multiple of 8 up to 192, chosen by a template argument,
// with bf16 or e4m3 operands.
#pragma once

#include <cstdint>

namespace dbo::kernels::sm90 {

// wgmma_n<kN>(d, a, b, accumulate): d[64 x kN] = (accumulate ? d : 0) + a[64 x 16] b[kN x 16]^T, both K-major in shared
// memory; the first kN / 2 numbers of `d` are used. wgmma_fp8_n is the same for e4m3, with 32 in the place of 16.
//
// Operand lists in pieces of 4, the accumulators of 8 columns.
#define DBO_NAMES_0 "%0, %1, %2, %3"
#define DBO_NAMES_1 DBO_NAMES_0 ", %4, %5, %6, %7"
#define DBO_NAMES_2 DBO_NAMES_1 ", %8, %9, %10, %11"
#define DBO_NAMES_3 DBO_NAMES_2 ", %12, %13, %14, %15"
#define DBO_NAMES_4 DBO_NAMES_3 ", %16, %17, %18, %19"
#define DBO_NAMES_5 DBO_NAMES_4 ", %20, %21, %22, %23"
#define DBO_NAMES_6 DBO_NAMES_5 ", %24, %25, %26, %27"
#define DBO_NAMES_7 DBO_NAMES_6 ", %28, %29, %30, %31"
#define DBO_NAMES_8 DBO_NAMES_7 ", %32, %33, %34, %35"
#define DBO_NAMES_9 DBO_NAMES_8 ", %36, %37, %38, %39"
#define DBO_NAMES_10 DBO_NAMES_9 ", %40, %41, %42, %43"
#define DBO_NAMES_11 DBO_NAMES_10 ", %44, %45, %46, %47"
#define DBO_NAMES_12 DBO_NAMES_11 ", %48, %49, %50, %51"
#define DBO_NAMES_13 DBO_NAMES_12 ", %52, %53, %54, %55"
#define DBO_NAMES_14 DBO_NAMES_13 ", %56, %57, %58, %59"
#define DBO_NAMES_15 DBO_NAMES_14 ", %60, %61, %62, %63"
#define DBO_NAMES_16 DBO_NAMES_15 ", %64, %65, %66, %67"
#define DBO_NAMES_17 DBO_NAMES_16 ", %68, %69, %70, %71"
#define DBO_NAMES_18 DBO_NAMES_17 ", %72, %73, %74, %75"
#define DBO_NAMES_19 DBO_NAMES_18 ", %76, %77, %78, %79"
#define DBO_NAMES_20 DBO_NAMES_19 ", %80, %81, %82, %83"
#define DBO_NAMES_21 DBO_NAMES_20 ", %84, %85, %86, %87"
#define DBO_NAMES_22 DBO_NAMES_21 ", %88, %89, %90, %91"
#define DBO_NAMES_23 DBO_NAMES_22 ", %92, %93, %94, %95"
#define DBO_SUMS(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define DBO_SUMS_0 DBO_SUMS(0)
#define DBO_SUMS_1 DBO_SUMS_0, DBO_SUMS(4)
#define DBO_SUMS_2 DBO_SUMS_1, DBO_SUMS(8)
#define DBO_SUMS_3 DBO_SUMS_2, DBO_SUMS(12)
#define DBO_SUMS_4 DBO_SUMS_3, DBO_SUMS(16)
#define DBO_SUMS_5 DBO_SUMS_4, DBO_SUMS(20)
#define DBO_SUMS_6 DBO_SUMS_5, DBO_SUMS(24)
#define DBO_SUMS_7 DBO_SUMS_6, DBO_SUMS(28)
#define DBO_SUMS_8 DBO_SUMS_7, DBO_SUMS(32)
#define DBO_SUMS_9 DBO_SUMS_8, DBO_SUMS(36)
#define DBO_SUMS_10 DBO_SUMS_9, DBO_SUMS(40)
#define DBO_SUMS_11 DBO_SUMS_10, DBO_SUMS(44)
#define DBO_SUMS_12 DBO_SUMS_11, DBO_SUMS(48)
#define DBO_SUMS_13 DBO_SUMS_12, DBO_SUMS(52)
#define DBO_SUMS_14 DBO_SUMS_13, DBO_SUMS(56)
#define DBO_SUMS_15 DBO_SUMS_14, DBO_SUMS(60)
#define DBO_SUMS_16 DBO_SUMS_15, DBO_SUMS(64)
#define DBO_SUMS_17 DBO_SUMS_16, DBO_SUMS(68)
#define DBO_SUMS_18 DBO_SUMS_17, DBO_SUMS(72)
#define DBO_SUMS_19 DBO_SUMS_18, DBO_SUMS(76)
#define DBO_SUMS_20 DBO_SUMS_19, DBO_SUMS(80)
#define DBO_SUMS_21 DBO_SUMS_20, DBO_SUMS(84)
#define DBO_SUMS_22 DBO_SUMS_21, DBO_SUMS(88)
#define DBO_SUMS_23 DBO_SUMS_22, DBO_SUMS(92)

// The last three are the numbers of the operands behind the accumulators.
#define DBO_WGMMA(name, kind, scales, width, piece, first, second, third)                                          \
  template <int kN, int kCount>                                                                                    \
  requires(kN == width) __device__ __forceinline__ void name(float(&d)[kCount], std::uint64_t a, std::uint64_t b,  \
                                                             std::uint32_t accumulate) {                           \
    static_assert(kCount >= kN / 2);                                                                               \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #third ", 0;\nwgmma.mma_async.sync.aligned.m64n" #width kind \
                 " {" DBO_NAMES_##piece "}, %" #first ", %" #second ", p, " scales ";\n}\n"                        \
                 : DBO_SUMS_##piece                                                                                \
                 : "l"(a), "l"(b), "r"(accumulate));                                                               \
  }
#define DBO_WGMMA_N(width, piece, first, second, third)                                     \
  DBO_WGMMA(wgmma_n, "k16.f32.bf16.bf16", "1, 1, 0, 0", width, piece, first, second, third) \
  DBO_WGMMA(wgmma_fp8_n, "k32.f32.e4m3.e4m3", "1, 1", width, piece, first, second, third)
DBO_WGMMA_N(8, 0, 4, 5, 6)
DBO_WGMMA_N(16, 1, 8, 9, 10)
DBO_WGMMA_N(24, 2, 12, 13, 14)
DBO_WGMMA_N(32, 3, 16, 17, 18)
DBO_WGMMA_N(40, 4, 20, 21, 22)
DBO_WGMMA_N(48, 5, 24, 25, 26)
DBO_WGMMA_N(56, 6, 28, 29, 30)
DBO_WGMMA_N(64, 7, 32, 33, 34)
DBO_WGMMA_N(72, 8, 36, 37, 38)
DBO_WGMMA_N(80, 9, 40, 41, 42)
DBO_WGMMA_N(88, 10, 44, 45, 46)
DBO_WGMMA_N(96, 11, 48, 49, 50)
DBO_WGMMA_N(104, 12, 52, 53, 54)
DBO_WGMMA_N(112, 13, 56, 57, 58)
DBO_WGMMA_N(120, 14, 60, 61, 62)
DBO_WGMMA_N(128, 15, 64, 65, 66)
DBO_WGMMA_N(136, 16, 68, 69, 70)
DBO_WGMMA_N(144, 17, 72, 73, 74)
DBO_WGMMA_N(152, 18, 76, 77, 78)
DBO_WGMMA_N(160, 19, 80, 81, 82)
DBO_WGMMA_N(168, 20, 84, 85, 86)
DBO_WGMMA_N(176, 21, 88, 89, 90)
DBO_WGMMA_N(184, 22, 92, 93, 94)
DBO_WGMMA_N(192, 23, 96, 97, 98)

#undef DBO_WGMMA_N
#undef DBO_WGMMA
#undef DBO_SUMS
#undef DBO_SUMS_0
#undef DBO_SUMS_1
#undef DBO_SUMS_2
#undef DBO_SUMS_3
#undef DBO_SUMS_4
#undef DBO_SUMS_5
#undef DBO_SUMS_6
#undef DBO_SUMS_7
#undef DBO_SUMS_8
#undef DBO_SUMS_9
#undef DBO_SUMS_10
#undef DBO_SUMS_11
#undef DBO_SUMS_12
#undef DBO_SUMS_13
#undef DBO_SUMS_14
#undef DBO_SUMS_15
#undef DBO_SUMS_16
#undef DBO_SUMS_17
#undef DBO_SUMS_18
#undef DBO_SUMS_19
#undef DBO_SUMS_20
#undef DBO_SUMS_21
#undef DBO_SUMS_22
#undef DBO_SUMS_23
#undef DBO_NAMES_0
#undef DBO_NAMES_1
#undef DBO_NAMES_2
#undef DBO_NAMES_3
#undef DBO_NAMES_4
#undef DBO_NAMES_5
#undef DBO_NAMES_6
#undef DBO_NAMES_7
#undef DBO_NAMES_8
#undef DBO_NAMES_9
#undef DBO_NAMES_10
#undef DBO_NAMES_11
#undef DBO_NAMES_12
#undef DBO_NAMES_13
#undef DBO_NAMES_14
#undef DBO_NAMES_15
#undef DBO_NAMES_16
#undef DBO_NAMES_17
#undef DBO_NAMES_18
#undef DBO_NAMES_19
#undef DBO_NAMES_20
#undef DBO_NAMES_21
#undef DBO_NAMES_22
#undef DBO_NAMES_23

}  // namespace dbo::kernels::sm90
