// One function per category of bindings of the module pydlbench._cuda.
#pragma once

#include <pybind11/pybind11.h>

namespace pydlbench {
void register_cuda_errors(pybind11::module_& m);
void register_cuda_device(pybind11::module_& m);
void register_cuda_libraries(pybind11::module_& m);
void register_cuda_plan(pybind11::module_& m);
void register_cuda_conv2d(pybind11::module_& m);
void register_cuda_gemm(pybind11::module_& m);
void register_cuda_pool2d(pybind11::module_& m);
void register_cuda_pointwise(pybind11::module_& m);
void register_cuda_kernel(pybind11::module_& m);
void register_cuda_reference(pybind11::module_& m);
void register_cuda_probes(pybind11::module_& m);
}  // namespace pydlbench
