// The module pydlbench._cuda: plans of cuDNN and cuBLASLt, kernels of our own, the sampler on CUDA
// events and graphs, and the GPU probes. The module imports without a driver; functions that need
// one throw.
#include <pybind11/pybind11.h>

#include <exception>

#include "bind/errors.hpp"
#include "cuda/runtime/check.hpp"

namespace py = pybind11;

namespace pydlbench {

void register_cuda_device(py::module_& m);
void register_cuda_plans(py::module_& m);
void register_cuda_kernels(py::module_& m);

namespace {

void register_cuda_errors() {
  py::register_local_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const cuda::DeviceLost& error) {
      py::set_error(error_types().device_lost, error.what());
    }
  });
}

}  // namespace
}  // namespace pydlbench

PYBIND11_MODULE(_cuda, m) {
  m.doc() = "CUDA kernels, their sampler and GPU probes; see the stub for signatures.";
  pydlbench::register_errors();
  pydlbench::register_cuda_errors();
  pydlbench::register_cuda_device(m);
  pydlbench::register_cuda_plans(m);
  pydlbench::register_cuda_kernels(m);
}
