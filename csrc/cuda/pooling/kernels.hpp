// Our pooling kernels, for callers that the host compiler compiles. Each data type is instantiated
// in a file of its own, so that they compile side by side.
#pragma once

#include "core/problem.hpp"
#include "cuda/pooling/own_plans.hpp"

struct CUstream_st;

namespace pydlbench::cuda::pooling {

using Forward = void(const Pool2dProblem&, const Choice&, const void* src, void* dst, void* argmax,
                     CUstream_st*);
using Backward = void(const Pool2dProblem&, const Choice&, const void* dst, const void* argmax,
                      void* src, CUstream_st*);

Forward forward_float32, forward_float16, forward_bfloat16;
Backward backward_float32, backward_float16, backward_bfloat16;

// Pools `src` into `dst`. With `argmax` (elements of argmax_type(), one per element of dst, counted
// from the top left of each window) writes where the maxima were too; then `dst` may be null.
void run_forward(const Pool2dProblem& problem, const Choice& choice, const void* src, void* dst,
                 void* argmax, CUstream_st* stream);

// The gradient of the source from that of the result; for maxima with the argmax of run_forward().
void run_backward(const Pool2dProblem& problem, const Choice& choice, const void* dst,
                  const void* argmax, void* src, CUstream_st* stream);

}  // namespace pydlbench::cuda::pooling
