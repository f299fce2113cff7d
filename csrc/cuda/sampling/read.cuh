// Reads all bytes of a buffer, which loads it into the L2 cache. For a small buffer this is a
// prefetch; for one several times as large as the cache it is a flush: other lines are evicted, and
// the new ones are clean, so that the next kernel does not wait for write-backs.
//
// `sum` gets the sum of the data: 16-byte words as four 32-bit numbers each, the bytes before and
// after them one by one. It prevents the removal of the loads, and tests use it to check that every
// byte was read once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cuda/simt.hpp"

namespace pydlbench::cuda {

struct alignas(16) ReadWord {
  std::uint32_t part[4];
};

inline constexpr unsigned kReadThreads = 256;
inline constexpr unsigned kReadBlocksPerMultiprocessor = 8;

static __global__ void read_kernel(const unsigned char* head, std::size_t head_bytes,
                                   const ReadWord* words, std::size_t word_count,
                                   const unsigned char* tail, std::size_t tail_bytes,
                                   std::uint32_t* sum) {
  const std::size_t first = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
  std::uint32_t total = 0;
  for (std::size_t i = first; i < word_count; i += step) {
    const ReadWord word = words[i];
    total += word.part[0] + word.part[1] + word.part[2] + word.part[3];
  }
  if (first < head_bytes) total += head[first];
  if (first < tail_bytes) total += tail[first];
  for (unsigned distance = warpSize / 2; distance > 0; distance /= 2) {
    total += __shfl_down_sync(0xffffffffu, total, distance);
  }
  if (threadIdx.x % warpSize == 0) atomicAdd(sum, total);
}

// Adds to `*sum`, which is device memory.
inline void read_all(const void* data, std::size_t bytes, int multiprocessors, std::uint32_t* sum,
                     cudaStream_t stream) {
  const auto* begin = static_cast<const unsigned char*>(data);
  const auto misaligned = reinterpret_cast<std::uintptr_t>(begin) % sizeof(ReadWord);
  const auto head = std::min(bytes, (sizeof(ReadWord) - misaligned) % sizeof(ReadWord));
  const auto words = (bytes - head) / sizeof(ReadWord);
  const auto* tail = begin + head + words * sizeof(ReadWord);
  const auto wanted = (words + kReadThreads - 1) / kReadThreads;
  const auto most = static_cast<std::size_t>(multiprocessors) * kReadBlocksPerMultiprocessor;
  const auto blocks = std::clamp<std::size_t>(wanted, 1, most);
  launch(read_kernel, dim3(static_cast<unsigned>(blocks)), dim3(kReadThreads), 0, stream, begin,
         head, reinterpret_cast<const ReadWord*>(begin + head), words, tail,
         bytes - head - words * sizeof(ReadWord), sum);
}

}  // namespace pydlbench::cuda
