// The module pydlbench._cpu: convolution, matrix-product and pooling plans on oneDNN, memory-bound
// layers on oneDNN and on loops of our own, and the CPU probes.
#include <pybind11/pybind11.h>

#include <oneapi/dnnl/dnnl.hpp>

#include "bind/registers.hpp"

PYBIND11_MODULE(_cpu, m) {
  m.doc() = "oneDNN kernels and CPU probes; see the stub for signatures.";
  // Each creation is timed, so none may be answered from the library's cache of earlier ones.
  dnnl::set_primitive_cache_capacity(0);
  pydlbench::register_errors(m);
  pydlbench::register_problems(m);
  pydlbench::register_pointwise(m);
  pydlbench::register_kernels(m);
  pydlbench::register_library(m);
  pydlbench::register_probes(m);
}
