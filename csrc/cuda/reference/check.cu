#include "cuda/reference/conv2d.cuh"
#include "cuda/reference/gemm.cuh"
#include "cuda/reference/pool2d.cuh"

namespace pydlbench::cuda {

void check(const Conv2dCheck& what, Deviation* records, CUstream_st* stream) {
  reference::launch_check(what, records, stream);
}

void check(const GemmCheck& what, Deviation* records, CUstream_st* stream) {
  reference::launch_check(what, records, stream);
}

void check(const Pool2dCheck& what, Deviation* records, CUstream_st* stream) {
  reference::launch_check(what, records, stream);
}

}  // namespace pydlbench::cuda
