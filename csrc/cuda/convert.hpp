// Copies between dense float32 arrays and tensors in plans' formats, on the device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/tensor.hpp"

struct CUstream_st;

namespace pydlbench::cuda {

// With more elements than the threads of this many blocks, threads convert several.
inline constexpr std::int64_t kConvertBlocks = 1 << 20;

// Converts a dense row-major array to the tensor, rounded to nearest, ties to even; e4m3 saturates.
// Memory between the elements is zeroed. Where blocks have scales, elements are divided by them.
void to_storage(const float* dense, const TensorSpec& spec, void* storage, CUstream_st* stream,
                std::int64_t max_blocks = kConvertBlocks);

// Bytes of the scales of a tensor's blocks, in cuBLASLt's layout: for each matrix of a batch tiles
// of 128 rows and four blocks, a byte each.
std::size_t scale_bytes(const TensorSpec& spec);

// Writes the scales of a tensor's blocks: powers of two (1, 1/2 or 1/4) that differ from block to
// block and from row to row, so that a kernel which reads them in another order computes wrong
// sums.
void to_scales(const TensorSpec& spec, void* scales, CUstream_st* stream,
               std::int64_t max_blocks = kConvertBlocks);

// Converts the tensor to a dense row-major array; exact, except for int32 beyond 2^24.
void to_dense(const TensorSpec& spec, const void* storage, float* dense, CUstream_st* stream,
              std::int64_t max_blocks = kConvertBlocks);

}  // namespace pydlbench::cuda
