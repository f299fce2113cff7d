// One function per category of bindings.
#pragma once

#include <pybind11/pybind11.h>

namespace pydlbench {
void register_errors(pybind11::module_& m);
void register_problems(pybind11::module_& m);
void register_pointwise(pybind11::module_& m);
void register_kernels(pybind11::module_& m);
void register_library(pybind11::module_& m);
void register_probes(pybind11::module_& m);
}  // namespace pydlbench
