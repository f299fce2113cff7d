// The module pydlbench._cuda: plans of cuDNN and cuBLASLt, kernels of our own, the sampler on CUDA
// events and graphs, and the GPU probes. Imports without a driver; what needs one says so.
#include <pybind11/pybind11.h>

#include "bind/cuda_registers.hpp"

PYBIND11_MODULE(_cuda, m) {
  m.doc() = "CUDA kernels, their sampler and GPU probes; see the stub for signatures.";
  pydlbench::register_cuda_errors(m);
  pydlbench::register_cuda_device(m);
  pydlbench::register_cuda_libraries(m);
  pydlbench::register_cuda_plan(m);
  pydlbench::register_cuda_conv2d(m);
  pydlbench::register_cuda_gemm(m);
  pydlbench::register_cuda_pool2d(m);
  pydlbench::register_cuda_pointwise(m);
  pydlbench::register_cuda_kernel(m);
  pydlbench::register_cuda_reference(m);
  pydlbench::register_cuda_probes(m);
}
