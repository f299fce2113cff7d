// Plans of matrix products.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "bind/cuda_registers.hpp"
#include "cuda/cublaslt/plans.hpp"
#include "cuda/runtime/device.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace pydlbench {

void register_cuda_gemm(py::module_& m) {
  using std::int64_t;
  m.def(
      "gemm_plans",
      [](const cuda::Device& device, const std::string& pass, const std::string& mode,
         int64_t batch_count, int64_t rows, int64_t k, int64_t n, std::size_t workspace_limit,
         bool fused) {
        return cuda::gemm_plans(device, {batch_count, rows, k, n}, cuda::pass_of(pass),
                                cuda::mode_of(mode), workspace_limit, fused);
      },
      "device"_a, "pass_"_a, "mode"_a, py::kw_only(), "batch_count"_a, "m"_a, "k"_a, "n"_a,
      "workspace_limit"_a = std::size_t{1} << 33, "fused"_a = false,
      py::call_guard<py::gil_scoped_release>(),
      "Algorithms x storages of a matrix product, in the library's order; fused: bias and ReLU.");
}

}  // namespace pydlbench
