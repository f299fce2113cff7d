// See fma_kernels.hpp.
#pragma once

#include <cstdint>

#include "cuda/probes/fma_kernels.hpp"
#include "cuda/simt/number.hpp"
#include "cuda/simt/simt.hpp"

namespace pydlbench::cuda::fma {

__device__ __forceinline__ float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
__device__ __forceinline__ float add(float a, float b) { return a + b; }
__device__ __forceinline__ float negative(float a) { return -a; }

#ifdef __CUDACC__

using Half2 = __half2;
__device__ __forceinline__ Half2 multiply_add(Half2 a, Half2 b, Half2 c) {
  return __hfma2(a, b, c);
}
__device__ __forceinline__ Half2 add(Half2 a, Half2 b) { return __hadd2(a, b); }
__device__ __forceinline__ Half2 negative(Half2 a) { return __hneg2(a); }

#else

struct alignas(4) Half2 {
  half_t x, y;
};
// Rounds once: the product of two halves plus a third is exact in double.
inline half_t rounded_half(double value) {
  if (value == 0 || !std::isfinite(value)) return from_float<half_t>(static_cast<float>(value));
  const int exponent = std::max(std::ilogb(value), -14);
  const double spacing = std::ldexp(1.0, exponent - 10);
  return from_float<half_t>(static_cast<float>(std::nearbyint(value / spacing) * spacing));
}
inline half_t multiply_add(half_t a, half_t b, half_t c) {
  return rounded_half(static_cast<double>(to_float(a)) * to_float(b) + to_float(c));
}
inline Half2 multiply_add(Half2 a, Half2 b, Half2 c) {
  return {multiply_add(a.x, b.x, c.x), multiply_add(a.y, b.y, c.y)};
}
inline half_t add(half_t a, half_t b) {
  return rounded_half(static_cast<double>(to_float(a)) + to_float(b));
}
inline Half2 add(Half2 a, Half2 b) { return {add(a.x, b.x), add(a.y, b.y)}; }
inline Half2 negative(Half2 a) {
  return {{static_cast<std::uint16_t>(a.x.bits ^ 0x8000)},
          {static_cast<std::uint16_t>(a.y.bits ^ 0x8000)}};
}

#endif

template <typename Register>
__global__ void __launch_bounds__(kFmaThreads)
    rotate(const Register* seeds, Register* results, std::uint32_t iterations) {
  constexpr unsigned kHalf = kFmaSeeds / 2;
  const Register a = seeds[threadIdx.x % kHalf];
  const Register minus_a = negative(a);
  Register x[kFmaPairs], y[kFmaPairs];
#pragma unroll
  for (unsigned i = 0; i < kFmaPairs; ++i) {
    x[i] = seeds[kHalf + (threadIdx.x + i) % kHalf];
    y[i] = seeds[kHalf + (threadIdx.x + i + kFmaPairs) % kHalf];
  }
  // Not unrolled: more of it would not fit into the instruction cache.
#pragma unroll 1
  for (std::uint32_t iteration = 0; iteration < iterations; ++iteration) {
#pragma unroll
    for (unsigned step = 0; step < kFmaSteps; ++step) {
#pragma unroll
      for (unsigned i = 0; i < kFmaPairs; ++i) x[i] = multiply_add(a, y[i], x[i]);
#pragma unroll
      for (unsigned i = 0; i < kFmaPairs; ++i) y[i] = multiply_add(minus_a, x[i], y[i]);
    }
  }
  Register sum = add(x[0], y[0]);
#pragma unroll
  for (unsigned i = 1; i < kFmaPairs; ++i) sum = add(add(sum, x[i]), y[i]);
  results[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

}  // namespace pydlbench::cuda::fma

namespace pydlbench::cuda {

inline void launch_fma_kernel(FmaKind kind, unsigned blocks, unsigned threads, const void* seeds,
                              void* results, std::uint32_t iterations, cudaStream_t stream) {
  if (kind == FmaKind::fp32) {
    launch(fma::rotate<float>, dim3(blocks), dim3(threads), 0, stream,
           static_cast<const float*>(seeds), static_cast<float*>(results), iterations);
  } else {
    launch(fma::rotate<fma::Half2>, dim3(blocks), dim3(threads), 0, stream,
           static_cast<const fma::Half2*>(seeds), static_cast<fma::Half2*>(results), iterations);
  }
}

}  // namespace pydlbench::cuda
