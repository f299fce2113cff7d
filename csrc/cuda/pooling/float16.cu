#include "cuda/pooling/kernels.cuh"
#include "cuda/pooling/kernels.hpp"

namespace pydlbench::cuda::pooling {

void forward_float16(const Pool2dProblem& problem, const Choice& choice, const void* src, void* dst,
                     void* argmax, CUstream_st* stream) {
  forward<half_t>(problem, choice, src, dst, argmax, stream);
}

void backward_float16(const Pool2dProblem& problem, const Choice& choice, const void* dst,
                      const void* argmax, void* src, CUstream_st* stream) {
  backward<half_t>(problem, choice, dst, argmax, src, stream);
}

}  // namespace pydlbench::cuda::pooling
