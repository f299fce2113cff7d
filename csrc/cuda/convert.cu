#include "cuda/convert.cuh"
#include "cuda/convert.hpp"

namespace pydlbench::cuda {

void to_storage(const float* dense, const TensorSpec& spec, void* storage, CUstream_st* stream) {
  launch_to_storage(dense, spec, storage, stream);
}

void to_dense(const TensorSpec& spec, const void* storage, float* dense, CUstream_st* stream) {
  launch_to_dense(spec, storage, dense, stream);
}

}  // namespace pydlbench::cuda
