// Philox4x64-10 (J. Salmon and others, "Parallel random numbers: as easy as 1, 2, 3", 2011): ten
// rounds turn a counter and a key into four numbers of 64 bits. There is no state, so each thread
// makes the values of its counters.
#include "cuda/uniform.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cuda/simt.hpp"

namespace pydlbench::cuda {

constexpr unsigned kUniformThreads = 256;
constexpr int kPerCounter = 8;  // values of 32 bits

__device__ inline std::uint64_t upper_product(std::uint64_t a, std::uint64_t b) {
#ifdef __CUDA_ARCH__
  return __umul64hi(a, b);
#else
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>(static_cast<Wide>(a) * b >> 64);
#endif
}

__device__ inline void philox(std::uint64_t counter, std::uint64_t key0, std::uint64_t key1,
                              std::uint64_t (&x)[4]) {
  x[0] = counter, x[1] = 0, x[2] = 0, x[3] = 0;
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    constexpr std::uint64_t a = 0xD2E7470EE14C6C93, b = 0xCA5A826395121157;
    const auto upper_a = upper_product(a, x[0]), lower_a = a * x[0];
    const auto upper_b = upper_product(b, x[2]), lower_b = b * x[2];
    x[0] = upper_b ^ x[1] ^ key0, x[1] = lower_b;
    x[2] = upper_a ^ x[3] ^ key1, x[3] = lower_a;
    key0 += 0x9E3779B97F4A7C15, key1 += 0xBB67AE8584CAA73B;
  }
}

// The significand of a number in [2, 4), less 3, rounded to nearest, ties to even.
__device__ inline float uniform(std::uint32_t random, int bits, float spacing) {
  const std::uint32_t pattern = random >> 9 | 0x40000000U;
  float value;
  memcpy(&value, &pattern, sizeof value);
  value -= 3.0f;
  if (bits == 24) return value;
  int exponent;
  frexpf(value, &exponent);
  // Both operations are exact: the step is a power of two, and no value is below 2^-22.
  float step = ldexpf(1.0f, exponent - bits);
  if (step < spacing) step = spacing;
  return rintf(value / step) * step;
}

__global__ void uniform_kernel(UniformTensor what, float* dense) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x * kPerCounter;
  const auto thread = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (auto first = thread * kPerCounter; first < what.elements; first += step) {
    std::uint64_t numbers[4];
    // NumPy counts before it makes numbers.
    philox(static_cast<std::uint64_t>(first / kPerCounter) + 1, what.key[0], what.key[1], numbers);
    // Unrolled, so that the numbers stay in registers.
#pragma unroll
    for (int i = 0; i < kPerCounter; ++i) {
      if (first + i >= what.elements) continue;
      const auto half = static_cast<std::uint32_t>(numbers[i / 2] >> (i % 2 * 32));
      dense[first + i] = uniform(half, what.bits, what.spacing);
    }
  }
}

void fill_uniform(const UniformTensor& what, float* dense, CUstream_st* stream,
                  std::int64_t max_blocks) {
  if (what.elements == 0) return;
  constexpr std::int64_t per_block = kUniformThreads * kPerCounter;
  const auto blocks = std::min((what.elements + per_block - 1) / per_block, max_blocks);
  launch(uniform_kernel, dim3(static_cast<unsigned>(blocks)), dim3(kUniformThreads), 0, stream,
         what, dense);
}

}  // namespace pydlbench::cuda
