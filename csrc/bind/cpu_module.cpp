// The module pydlbench._cpu: convolution, matrix-product and pooling plans on oneDNN, and the CPU
// probes.
#include <pybind11/pybind11.h>

#include "bind/registers.hpp"

PYBIND11_MODULE(_cpu, m) {
  m.doc() = "oneDNN kernels and CPU probes; see the stub for signatures.";
  pydlbench::register_errors(m);
  pydlbench::register_problems(m);
  pydlbench::register_kernels(m);
  pydlbench::register_library(m);
  register_probes(m);
}
