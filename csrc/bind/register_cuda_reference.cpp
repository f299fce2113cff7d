// The float64 reference on the device.
#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <string>

#include "bind/cuda_registers.hpp"
#include "core/error.hpp"
#include "cuda/mode.hpp"
#include "cuda/reference/reference.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace pydlbench {

void register_cuda_reference(py::module_& m) {
  using std::int64_t;

  py::class_<cuda::Reference, std::shared_ptr<cuda::Reference>>(m, "Reference")
      .def("__repr__",
           [](const cuda::Reference& self) { return "<Reference of " + self.role() + ">"; });

  // The device is that of the arena that is compared; it is taken for the sake of the plans' own
  // signatures.
  m.def(
      "conv2d_reference",
      [](const cuda::Device&, const std::string& pass, int64_t batch, int64_t groups,
         int64_t in_channels, int64_t in_height, int64_t in_width, int64_t out_channels,
         int64_t out_height, int64_t out_width, int64_t kernel_height, int64_t kernel_width,
         int64_t stride_height, int64_t stride_width, int64_t pad_top, int64_t pad_left,
         int64_t pad_bottom, int64_t pad_right, int64_t dilation_height, int64_t dilation_width,
         bool fused) {
        return cuda::conv2d_reference(
            cuda::pass_of(pass),
            {batch, groups, in_channels, in_height, in_width, out_channels, out_height, out_width,
             kernel_height, kernel_width, stride_height, stride_width, pad_top, pad_left,
             pad_bottom, pad_right, dilation_height, dilation_width},
            fused);
      },
      "device"_a, "pass_"_a, py::kw_only(), "batch"_a, "groups"_a, "in_channels"_a, "in_height"_a,
      "in_width"_a, "out_channels"_a, "out_height"_a, "out_width"_a, "kernel_height"_a,
      "kernel_width"_a, "stride_height"_a, "stride_width"_a, "pad_top"_a, "pad_left"_a,
      "pad_bottom"_a, "pad_right"_a, "dilation_height"_a, "dilation_width"_a, "fused"_a = false);

  m.def(
      "gemm_reference",
      [](const cuda::Device&, const std::string& pass, int64_t batch_count, int64_t rows, int64_t k,
         int64_t n, bool fused) {
        return cuda::gemm_reference(cuda::pass_of(pass), {batch_count, rows, k, n}, fused);
      },
      "device"_a, "pass_"_a, py::kw_only(), "batch_count"_a, "m"_a, "k"_a, "n"_a,
      "fused"_a = false);

  m.def(
      "pool2d_reference",
      [](const cuda::Device&, const std::string& pass, const std::string& mode, int64_t batch,
         int64_t channels, int64_t in_height, int64_t in_width, int64_t out_height,
         int64_t out_width, int64_t kernel_height, int64_t kernel_width, int64_t stride_height,
         int64_t stride_width, int64_t pad_top, int64_t pad_left, int64_t pad_bottom,
         int64_t pad_right) {
        return cuda::pool2d_reference(
            cuda::pass_of(pass), {batch, channels, in_height, in_width, out_height, out_width,
                                  kernel_height, kernel_width, stride_height, stride_width, pad_top,
                                  pad_left, pad_bottom, pad_right, cuda::pool_mode_of(mode)});
      },
      "device"_a, "pass_"_a, "pool_mode"_a, py::kw_only(), "batch"_a, "channels"_a, "in_height"_a,
      "in_width"_a, "out_height"_a, "out_width"_a, "kernel_height"_a, "kernel_width"_a,
      "stride_height"_a, "stride_width"_a, "pad_top"_a, "pad_left"_a, "pad_bottom"_a,
      "pad_right"_a);
}

}  // namespace pydlbench
