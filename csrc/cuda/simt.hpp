// The header of kernel files: CUDA's language under nvcc, or its emulation on a CPU, and the
// storage formats of tensors.
//
// Kernels can be compiled by nvcc for the GPU, and by any C++17 compiler for tests without a GPU,
// which have the emulation in the include path. Launchers are in the same file, so that grid and
// indexing are tested together.
#pragma once

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "cuda/runtime/check.hpp"

namespace pydlbench::cuda {

// Starts a kernel and throws if the launch fails; later errors are sticky.
template <typename... Parameters, typename... Arguments>
inline void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared_bytes,
                   cudaStream_t stream, Arguments&&... arguments) {
  kernel<<<grid, block, shared_bytes, stream>>>(static_cast<Parameters>(arguments)...);
  PYDLBENCH_CUDA_CHECK(cudaGetLastError());
}

// Storage formats: conversions to float and back, rounding to nearest, ties to even.
using half_t = __half;
using bfloat16_t = __nv_bfloat16;
using float8_t = __nv_fp8_e4m3;

template <typename T>
__host__ __device__ __forceinline__ float to_float(T value) {
  return static_cast<float>(value);
}
template <>
__host__ __device__ __forceinline__ float to_float(half_t value) {
  return __half2float(value);
}
template <>
__host__ __device__ __forceinline__ float to_float(bfloat16_t value) {
  return __bfloat162float(value);
}
template <typename T>
__host__ __device__ __forceinline__ T from_float(float value) {
  return static_cast<T>(value);
}
template <>
__host__ __device__ __forceinline__ half_t from_float<half_t>(float value) {
  return __float2half_rn(value);
}
template <>
__host__ __device__ __forceinline__ bfloat16_t from_float<bfloat16_t>(float value) {
  return __float2bfloat16_rn(value);
}

}  // namespace pydlbench::cuda

#else
#include "cuda_emulation.hpp"
#endif
