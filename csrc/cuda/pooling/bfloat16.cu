#include "cuda/pooling/kernels.cuh"
#include "cuda/pooling/kernels.hpp"

namespace pydlbench::cuda::pooling {

void forward_bfloat16(const Pool2dProblem& problem, const Choice& choice, const void* src,
                      void* dst, void* argmax, CUstream_st* stream) {
  forward<bfloat16_t>(problem, choice, src, dst, argmax, stream);
}

void backward_bfloat16(const Pool2dProblem& problem, const Choice& choice, const void* dst,
                       const void* argmax, void* src, CUstream_st* stream) {
  backward<bfloat16_t>(problem, choice, dst, argmax, src, stream);
}

}  // namespace pydlbench::cuda::pooling
