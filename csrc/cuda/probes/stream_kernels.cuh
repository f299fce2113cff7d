// See stream_kernels.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>

#include "cuda/probes/stream_kernels.hpp"
#include "cuda/simt/simt.hpp"

namespace pydlbench::cuda::streams {

struct alignas(kStreamWord) Word {
  std::uint32_t x, y, z, w;
};

// Around the L1 cache: together, those of all multiprocessors would hold half of an L2 cache.
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

// What the write kernel writes where: different everywhere, so that no compression helps.
__device__ __forceinline__ Word pattern(std::uint32_t index) {
  const std::uint32_t mixed = index * 2654435761u;
  return {mixed, mixed ^ 0x5bd1e995u, ~mixed, mixed + 0x9e3779b9u};
}

// Chunks are dealt to blocks like cards, pass after pass without a pause between passes: only the
// last round of a launch can leave blocks without work.
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
  // One store per thread and launch: what it read cannot be left out.
  if constexpr (kKind == StreamKind::read) sums[blockIdx.x * kStreamThreads + threadIdx.x] = sum;
}

using Kernel = void (*)(const Word*, Word*, std::uint32_t*, std::uint32_t, std::uint32_t);

template <StreamKind kKind>
Kernel kernel_of(unsigned in_flight) {
  switch (in_flight) {
    case 2:
      return sweep<2, kKind>;
    case 4:
      return sweep<4, kKind>;
    case 8:
      return sweep<8, kKind>;
    default:
      throw std::invalid_argument("a stream kernel has 2, 4 or 8 words in flight");
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

inline void launch_stream_kernel(StreamKind kind, StreamShape shape, const StreamJob& job,
                                 cudaStream_t stream) {
  launch(streams::kernel_of(kind, shape.in_flight), dim3(shape.blocks), dim3(kStreamThreads), 0,
         stream, static_cast<const streams::Word*>(job.source),
         static_cast<streams::Word*>(job.destination), job.sums, job.chunks, job.items);
}

}  // namespace pydlbench::cuda
