// Convolution plans of cuDNN.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "bind/cuda_registers.hpp"
#include "core/error.hpp"
#include "core/problem.hpp"
#include "cuda/cudnn/plans.hpp"
#include "cuda/cudnn/target.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace pydlbench {
namespace {

cuda::cudnn::Target target_of(const cuda::Device* device,
                              const std::optional<std::string>& properties) {
  if (device != nullptr) return cuda::cudnn::Target::of(*device);
  if (properties) return cuda::cudnn::Target::of_properties(*properties);
  throw std::invalid_argument("conv2d_plans: neither a device nor device_properties");
}

}  // namespace

void register_cuda_conv2d(py::module_& m) {
  using std::int64_t;

  m.def(
      "conv2d_plans",
      [](const cuda::Device* device, const std::string& pass, const std::string& mode,
         int64_t batch, int64_t groups, int64_t in_channels, int64_t in_height, int64_t in_width,
         int64_t out_channels, int64_t out_height, int64_t out_width, int64_t kernel_height,
         int64_t kernel_width, int64_t stride_height, int64_t stride_width, int64_t pad_top,
         int64_t pad_left, int64_t pad_bottom, int64_t pad_right, int64_t dilation_height,
         int64_t dilation_width, const std::string& layout, std::size_t workspace_limit, bool fused,
         bool sweep, const std::optional<std::string>& device_properties) {
        return cuda::cudnn::conv2d_plans(
            target_of(device, device_properties),
            {batch, groups, in_channels, in_height, in_width, out_channels, out_height, out_width,
             kernel_height, kernel_width, stride_height, stride_width, pad_top, pad_left,
             pad_bottom, pad_right, dilation_height, dilation_width},
            cuda::pass_of(pass), cuda::mode_of(mode), {layout, workspace_limit, fused, sweep});
      },
      "device"_a.none(true), "pass_"_a, "mode"_a, py::kw_only(), "batch"_a, "groups"_a,
      "in_channels"_a, "in_height"_a, "in_width"_a, "out_channels"_a, "out_height"_a, "out_width"_a,
      "kernel_height"_a, "kernel_width"_a, "stride_height"_a, "stride_width"_a, "pad_top"_a,
      "pad_left"_a, "pad_bottom"_a, "pad_right"_a, "dilation_height"_a, "dilation_width"_a,
      "layout"_a = "best", "workspace_limit"_a = std::size_t{1} << 33, "fused"_a = false,
      "sweep"_a = true, "device_properties"_a = py::none(),
      py::call_guard<py::gil_scoped_release>(),
      "Execution plans of a convolution, in cuDNN's order. Without a device, plans for the GPU "
      "that "
      "device_properties describes: they can be built, not run.");

  m.def("device_properties", &cuda::cudnn::device_properties, "device"_a,
        py::call_guard<py::gil_scoped_release>(),
        "The GPU's properties as cuDNN serialises them (JSON).");

  // While CUDA is still there: nothing may call cuDNN after it is unloaded.
  py::module_::import("atexit").attr("register")(
      py::cpp_function([] { cuda::cudnn::release_handles(); }));
}

}  // namespace pydlbench
