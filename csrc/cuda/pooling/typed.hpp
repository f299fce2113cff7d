// Our pooling kernels by data type: each is instantiated in a file of its own, so that they compile
// side by side.
#pragma once

#include "core/problem.hpp"
#include "cuda/pooling/choice.hpp"

struct CUstream_st;

namespace pydlbench::cuda::pooling {

using Forward = void(const Pool2dProblem&, const Choice&, const void* src, void* dst, void* argmax,
                     CUstream_st*);
using Backward = void(const Pool2dProblem&, const Choice&, const void* dst, const void* argmax,
                      void* src, CUstream_st*);

Forward forward_float32, forward_float16, forward_bfloat16;
Backward backward_float32, backward_float16, backward_bfloat16;

}  // namespace pydlbench::cuda::pooling
