// Plans of pooling.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <string>

#include "bind/cuda_registers.hpp"
#include "core/error.hpp"
#include "cuda/pooling/plans.hpp"
#include "cuda/runtime/device.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace pydlbench {

void register_cuda_pool2d(py::module_& m) {
  using std::int64_t;
  m.def(
      "pool2d_plans",
      [](const cuda::Device& device, const std::string& pass, const std::string& mode,
         const std::string& pool_mode, int64_t batch, int64_t channels, int64_t in_height,
         int64_t in_width, int64_t out_height, int64_t out_width, int64_t kernel_height,
         int64_t kernel_width, int64_t stride_height, int64_t stride_width, int64_t pad_top,
         int64_t pad_left, int64_t pad_bottom, int64_t pad_right, const std::string& layout) {
        return cuda::pool2d_plans(
            device,
            {batch, channels, in_height, in_width, out_height, out_width, kernel_height,
             kernel_width, stride_height, stride_width, pad_top, pad_left, pad_bottom, pad_right,
             cuda::pool_mode_of(pool_mode)},
            cuda::pass_of(pass), cuda::mode_of(mode), layout);
      },
      "device"_a, "pass_"_a, "mode"_a, "pool_mode"_a, py::kw_only(), "batch"_a, "channels"_a,
      "in_height"_a, "in_width"_a, "out_height"_a, "out_width"_a, "kernel_height"_a,
      "kernel_width"_a, "stride_height"_a, "stride_width"_a, "pad_top"_a, "pad_left"_a,
      "pad_bottom"_a, "pad_right"_a, "layout"_a = "best", py::call_guard<py::gil_scoped_release>(),
      "Implementations x layouts of a pooling: cuDNN's and kernels of our own.");
}

}  // namespace pydlbench
