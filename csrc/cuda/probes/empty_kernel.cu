#include "cuda/probes/empty_kernel.hpp"

#include "cuda/simt/simt.hpp"

namespace pydlbench::cuda {
namespace {

__global__ void empty() {}

}  // namespace

void launch_empty(CUstream_st* stream) { launch(empty, dim3(1), dim3(32), 0, stream); }

}  // namespace pydlbench::cuda
