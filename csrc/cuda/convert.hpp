// Copies between the caller's dense float32 arrays and tensors as plans store them, and from one
// such tensor to another, on the device.
#pragma once

#include <cstdint>

#include "cuda/tensor.hpp"

struct CUstream_st;

namespace pydlbench::cuda {

// More elements than that many blocks have threads are walked through in several steps.
inline constexpr std::int64_t kConvertBlocks = 1 << 20;

// Rounds the dense row-major array (nearest, ties to even; e4m3 saturates) into the tensor. Memory
// between its elements becomes zero.
void to_storage(const float* dense, const TensorSpec& spec, void* storage, CUstream_st* stream,
                std::int64_t most_blocks = kConvertBlocks);

// The tensor as a dense row-major array; exact, except for int32 beyond 2^24.
void to_dense(const TensorSpec& spec, const void* storage, float* dense, CUstream_st* stream,
              std::int64_t most_blocks = kConvertBlocks);

// The elements of one tensor at the places and in the format of another one of the same dimensions;
// rounds as to_storage() does, and leaves memory between elements as it is.
void convert(const TensorSpec& from, const void* source, const TensorSpec& to, void* target,
             CUstream_st* stream, std::int64_t most_blocks = kConvertBlocks);

}  // namespace pydlbench::cuda
