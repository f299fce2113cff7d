// Uniform random values in [-1, 1), made in device memory: those of the host's generator
// (pydlbench/verification/inputs.py) for the same key.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace pydlbench::cuda {

// A tensor of random values. They have `bits` significand bits, implicit one included, and are
// multiples of `spacing`, unless that is zero.
struct UniformTensor {
  std::int64_t elements;
  std::uint64_t key[2];
  int bits;
  float spacing;
};

// With more elements than the threads of this many blocks, threads make several.
inline constexpr std::int64_t kUniformBlocks = 1 << 20;

// Writes a dense float32 array.
void fill_uniform(const UniformTensor& what, float* dense, CUstream_st* stream,
                  std::int64_t max_blocks = kUniformBlocks);

}  // namespace pydlbench::cuda
