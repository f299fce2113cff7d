// The probes' kernels: multiply-adds without memory accesses, memory accesses, and an empty kernel.
#include <cstddef>
#include <cstdint>
#include <stdexcept>

#include "cuda/probes/kernels.hpp"
#include "cuda/simt.hpp"

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
// Rounds once, because the product of two halves plus a third is exact in double.
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
  // Not unrolled further, so that it fits into the instruction cache.
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

void launch_fma(FmaKind kind, unsigned blocks, unsigned threads, const void* seeds, void* results,
                std::uint32_t iterations, CUstream_st* stream) {
  if (kind == FmaKind::fp32) {
    launch(fma::rotate<float>, dim3(blocks), dim3(threads), 0, stream,
           static_cast<const float*>(seeds), static_cast<float*>(results), iterations);
  } else {
    launch(fma::rotate<fma::Half2>, dim3(blocks), dim3(threads), 0, stream,
           static_cast<const fma::Half2*>(seeds), static_cast<fma::Half2*>(results), iterations);
  }
}

}  // namespace pydlbench::cuda

namespace pydlbench::cuda::streams {

struct alignas(kStreamWord) Word {
  std::uint32_t x, y, z, w;
};

// Bypass the L1 caches, which together have half the size of an L2 cache.
#ifdef __CUDACC__
__device__ __forceinline__ Word load(const Word* from) {
  const uint4 value = __ldcg(reinterpret_cast<const uint4*>(from));
  return {value.x, value.y, value.z, value.w};
}
__device__ __forceinline__ void store(Word* to, Word value) {
  __stcg(reinterpret_cast<uint4*>(to), make_uint4(value.x, value.y, value.z, value.w));
}
#else
inline Word load(const Word* from) { return *from; }
inline void store(Word* to, Word value) { *to = value; }
#endif

// The values of the write kernel, all different, so that memory compression has no effect.
__device__ __forceinline__ Word pattern(std::uint32_t index) {
  const std::uint32_t mixed = index * 2654435761u;
  return {mixed, mixed ^ 0x5bd1e995u, ~mixed, mixed + 0x9e3779b9u};
}

// Blocks take chunks in turn, without a pause between passes: only in the last round of a launch
// can blocks have no work. On an H200 a copy is fastest with a block for each chunk, 4.20 TB/s with
// a word per thread; with as many blocks as can be resident it is 3.9.
template <unsigned kInFlight, StreamKind kKind>
__global__ void __launch_bounds__(kStreamThreads)
    sweep(const Word* source, Word* destination, std::uint32_t* sums, std::uint32_t chunks,
          std::uint32_t items) {
  std::uint32_t sum = 0;
  for (std::uint32_t item = blockIdx.x; item < items; item += gridDim.x) {
    const std::size_t first =
        static_cast<std::size_t>(item % chunks) * (kStreamThreads * kInFlight) + threadIdx.x;
    Word words[kInFlight];
#pragma unroll
    for (unsigned i = 0; i < kInFlight; ++i) {
      if constexpr (kKind == StreamKind::write) {
        words[i] = pattern(static_cast<std::uint32_t>(first + i * kStreamThreads));
      } else {
        words[i] = load(source + first + i * kStreamThreads);
      }
    }
#pragma unroll
    for (unsigned i = 0; i < kInFlight; ++i) {
      if constexpr (kKind == StreamKind::read) {
        sum += words[i].x + words[i].y + words[i].z + words[i].w;
      } else {
        store(destination + first + i * kStreamThreads, words[i]);
      }
    }
  }
  // One store per thread and launch, so that the reads are not optimised away.
  if constexpr (kKind == StreamKind::read) sums[blockIdx.x * kStreamThreads + threadIdx.x] = sum;
}

using Kernel = void (*)(const Word*, Word*, std::uint32_t*, std::uint32_t, std::uint32_t);

template <StreamKind kKind>
Kernel kernel_of(unsigned in_flight) {
  switch (in_flight) {
    case 1:
      return sweep<1, kKind>;
    case 2:
      return sweep<2, kKind>;
    case 4:
      return sweep<4, kKind>;
    case 8:
      return sweep<8, kKind>;
    default:
      throw std::invalid_argument("a stream kernel has 1, 2, 4 or 8 words in flight");
  }
}

inline Kernel kernel_of(StreamKind kind, unsigned in_flight) {
  switch (kind) {
    case StreamKind::read:
      return kernel_of<StreamKind::read>(in_flight);
    case StreamKind::write:
      return kernel_of<StreamKind::write>(in_flight);
    case StreamKind::copy:
      return kernel_of<StreamKind::copy>(in_flight);
  }
  throw std::invalid_argument("no such stream kernel");
}

}  // namespace pydlbench::cuda::streams

namespace pydlbench::cuda {

#ifdef __CUDACC__  // the emulation on a CPU has no occupancy
unsigned resident_stream_blocks(StreamKind kind, unsigned in_flight) {
  int blocks = 0;
  PYDLBENCH_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
      &blocks, streams::kernel_of(kind, in_flight), static_cast<int>(kStreamThreads), 0));
  return static_cast<unsigned>(blocks);
}
#endif

void launch_stream(StreamKind kind, StreamShape shape, const StreamJob& job, CUstream_st* stream) {
  const unsigned blocks = shape.blocks == kBlockPerItem ? job.items : shape.blocks;
  launch(streams::kernel_of(kind, shape.in_flight), dim3(blocks), dim3(kStreamThreads), 0, stream,
         static_cast<const streams::Word*>(job.source),
         static_cast<streams::Word*>(job.destination), job.sums, job.chunks, job.items);
}

namespace {

__global__ void empty() {}

}  // namespace

void launch_empty(CUstream_st* stream) { launch(empty, dim3(1), dim3(32), 0, stream); }

}  // namespace pydlbench::cuda
