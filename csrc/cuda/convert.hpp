// Copies between dense float32 arrays and tensors in plans' formats, on the device.
#pragma once

#include <cstdint>

#include "cuda/tensor.hpp"

struct CUstream_st;

namespace pydlbench::cuda {

// With more elements than the threads of this many blocks, threads convert several.
inline constexpr std::int64_t kConvertBlocks = 1 << 20;

// Converts a dense row-major array to the tensor, rounded to nearest, ties to even; e4m3 saturates.
// Memory between the elements is zeroed.
void to_storage(const float* dense, const TensorSpec& spec, void* storage, CUstream_st* stream,
                std::int64_t max_blocks = kConvertBlocks);

// Converts the tensor to a dense row-major array; exact, except for int32 beyond 2^24.
void to_dense(const TensorSpec& spec, const void* storage, float* dense, CUstream_st* stream,
              std::int64_t max_blocks = kConvertBlocks);

}  // namespace pydlbench::cuda
