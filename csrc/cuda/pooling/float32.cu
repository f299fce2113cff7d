#include "cuda/pooling/kernels.cuh"
#include "cuda/pooling/kernels.hpp"

namespace pydlbench::cuda::pooling {

void forward_float32(const Pool2dProblem& problem, const Choice& choice, const void* src, void* dst,
                     void* argmax, CUstream_st* stream) {
  forward<float>(problem, choice, src, dst, argmax, stream);
}

void backward_float32(const Pool2dProblem& problem, const Choice& choice, const void* dst,
                      const void* argmax, void* src, CUstream_st* stream) {
  backward<float>(problem, choice, dst, argmax, src, stream);
}

}  // namespace pydlbench::cuda::pooling
