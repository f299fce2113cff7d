// The module pydlbench._cpu: convolution, matrix-product and pooling plans on oneDNN, memory-bound
// layers on oneDNN and on loops of our own, and the CPU probes.
#include <pybind11/pybind11.h>

#include <exception>
#include <oneapi/dnnl/dnnl.hpp>

#include "bind/errors.hpp"
#include "cpu/plans.hpp"

namespace py = pybind11;

namespace pydlbench {

void register_cpu_candidates(py::module_& m);
void register_cpu_kernels(py::module_& m);
void register_cpu_probes(py::module_& m);

namespace {

// Translates oneDNN's exceptions outside of primitives, in conversions and descriptors.
void register_dnnl_errors() {
  py::register_local_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const dnnl::error& error) {
      py::set_error(error_types().primitive, ("oneDNN: " + cpu::describe(error)).c_str());
    }
  });
}

}  // namespace
}  // namespace pydlbench

PYBIND11_MODULE(_cpu, m) {
  m.doc() = "oneDNN kernels and CPU probes; see the stub for signatures.";
  // Creation is timed, so it must not use the library's cache of primitives.
  dnnl::set_primitive_cache_capacity(0);
  pydlbench::register_errors();
  pydlbench::register_dnnl_errors();
  pydlbench::register_cpu_candidates(m);
  pydlbench::register_cpu_kernels(m);
  pydlbench::register_cpu_probes(m);
}
