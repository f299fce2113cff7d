// Sums over a warp, a block and a whole tensor, always in the same order, so that results are
// reproducible.
#pragma once

#include <algorithm>

#include "cuda/pointwise/elementwise.cuh"

namespace pydlbench::cuda::pointwise {

inline constexpr unsigned kWholeWarp = 0xffffffffu;

// All lanes get the sum.
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) value += __shfl_xor_sync(kWholeWarp, value, mask);
  return value;
}

__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kWholeWarp, value, mask));
  }
  return value;
}

// Sums of kCount values over a block of whole warps; every thread gets them. `scratch` may be
// reused after the next barrier.
template <int kCount>
__device__ __forceinline__ void block_sum(float (&values)[kCount], float (&scratch)[kCount][32]) {
  const unsigned thread = threadIdx.x, warps = blockDim.x / 32;
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    const float sum = warp_sum(values[k]);
    if (thread % 32 == 0) scratch[k][thread / 32] = sum;
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    values[k] = warp_sum(thread % 32 < warps ? scratch[k][thread % 32] : 0.0f);
  }
}

__device__ __forceinline__ float block_max(float value, float (&scratch)[32]) {
  const unsigned thread = threadIdx.x, warps = blockDim.x / 32;
  value = warp_max(value);
  if (thread % 32 == 0) scratch[thread / 32] = value;
  __syncthreads();
  return warp_max(thread % 32 < warps ? scratch[thread % 32] : -INFINITY);
}

// partial[block] = the sum of Op::of(element) over the block's tiles.
template <typename T, typename Op>
__global__ void __launch_bounds__(kThreads, kMinBlocks)
    partial_sums_kernel(const T* __restrict__ src, std::int64_t count, bool aligned,
                        float* partial) {
  __shared__ float scratch[1][32];
  constexpr int lanes = kLanes<T>, unroll = 4;
  constexpr std::int64_t step = std::int64_t{kThreads} * lanes, per_tile = unroll * step;
  float total[1] = {0.0f};
  for (std::int64_t start = blockIdx.x * per_tile; start < count; start += gridDim.x * per_tile) {
    const std::int64_t mine = start + std::int64_t{threadIdx.x} * lanes;
    Bits16 bits[unroll];
    if (aligned && start + per_tile <= count) {
#pragma unroll
      for (int u = 0; u < unroll; ++u) bits[u] = load_whole(src, mine + u * step);
    } else {
#pragma unroll
      for (int u = 0; u < unroll; ++u) bits[u] = load_bits(src, mine + u * step, count, aligned);
    }
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      float values[lanes];
      unpack<T>(bits[u], values);
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < lanes; ++i) sum += Op::of(values[i]);
      total[0] += sum;
    }
  }
  block_sum(total, scratch);
  if (threadIdx.x == 0) partial[blockIdx.x] = total[0];
}

// dst[0] = scale x the sum of `count` partial sums, by one block.
template <typename Out>
__global__ void __launch_bounds__(kThreads, kMinBlocks)
    total_kernel(const float* __restrict__ partial, std::int64_t count, float scale, Out* dst) {
  __shared__ float scratch[1][32];
  float total[1] = {0.0f};
  for (std::int64_t i = threadIdx.x; i < count; i += blockDim.x) total[0] += partial[i];
  block_sum(total, scratch);
  if (threadIdx.x == 0) dst[0] = from_float<Out>(scale * total[0]);
}

}  // namespace pydlbench::cuda::pointwise
