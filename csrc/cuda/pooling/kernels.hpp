// Launchers of our own pooling kernels, for code that the host compiler compiles.
#pragma once

#include <cstdint>

#include "core/problem.hpp"
#include "cuda/mode.hpp"

struct CUstream_st;

namespace pydlbench::cuda::pooling {

// Pools `src` to `dst`, and for maxima writes their positions to `argmax` (one byte per element of
// dst, counted from the top left of each window). Either may be null. Throws Unsupported for images
// of 2**31 elements and more.
void run_forward(const PoolProblem& problem, DataType type, bool channels_last, const void* src,
                 void* dst, std::uint8_t* argmax, CUstream_st* stream);

// Computes the gradient of the source; for maxima with the argmax of run_forward().
void run_backward(const PoolProblem& problem, DataType type, bool channels_last, const void* dst,
                  const std::uint8_t* argmax, void* src, CUstream_st* stream);

}  // namespace pydlbench::cuda::pooling
