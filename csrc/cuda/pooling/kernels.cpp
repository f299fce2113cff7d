#include "cuda/pooling/kernels.hpp"

#include "core/error.hpp"
#include "cuda/pooling/typed.hpp"

namespace pydlbench::cuda::pooling {

void run_forward(const Pool2dProblem& problem, const Choice& choice, const void* src, void* dst,
                 void* argmax, CUstream_st* stream) {
  switch (choice.type) {
    case DataType::float32:
      return forward_float32(problem, choice, src, dst, argmax, stream);
    case DataType::float16:
      return forward_float16(problem, choice, src, dst, argmax, stream);
    case DataType::bfloat16:
      return forward_bfloat16(problem, choice, src, dst, argmax, stream);
    default:
      throw Unsupported("pooling in this data type");
  }
}

void run_backward(const Pool2dProblem& problem, const Choice& choice, const void* dst,
                  const void* argmax, void* src, CUstream_st* stream) {
  switch (choice.type) {
    case DataType::float32:
      return backward_float32(problem, choice, dst, argmax, src, stream);
    case DataType::float16:
      return backward_float16(problem, choice, dst, argmax, src, stream);
    case DataType::bfloat16:
      return backward_bfloat16(problem, choice, dst, argmax, src, stream);
    default:
      throw Unsupported("pooling in this data type");
  }
}

}  // namespace pydlbench::cuda::pooling
