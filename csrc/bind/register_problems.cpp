// Problem descriptions and the search for candidates.
#include <pybind11/native_enum.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <string>

#include "bind/registers.hpp"
#include "core/error.hpp"
#include "core/problem.hpp"
#include "cpu/candidate.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace pydlbench {

void register_problems(py::module_& m) {
  using std::int64_t;

  py::native_enum<Pass>(m, "Pass", "enum.Enum", "Propagation kind.")
      .value("forward_inference", Pass::forward_inference)
      .value("forward_training", Pass::forward_training)
      .value("backward_data", Pass::backward_data)
      .value("backward_weights", Pass::backward_weights)
      .finalize();
  py::native_enum<Precision>(m, "Precision", "enum.Enum", "Data type of all tensors.")
      .value("fp32", Precision::fp32)
      .value("bf16", Precision::bf16)
      .value("fp16", Precision::fp16)
      .finalize();
  py::native_enum<PoolMode>(m, "PoolMode", "enum.Enum", "What pooling computes.")
      .value("max", PoolMode::max)
      .value("avg_include_padding", PoolMode::avg_include_padding)
      .value("avg_exclude_padding", PoolMode::avg_exclude_padding)
      .finalize();

  py::class_<cpu::Candidate>(m, "Candidate")
      .def_readonly("primitive", &cpu::Candidate::primitive)
      .def_readonly("implementation", &cpu::Candidate::implementation)
      .def_readonly("variant", &cpu::Candidate::variant)
      .def_readonly("layout", &cpu::Candidate::layout)
      .def_readonly("is_reference", &cpu::Candidate::is_reference)
      .def_property_readonly("scratchpad_bytes", &cpu::Candidate::scratchpad_bytes)
      .def_property_readonly("workspace_bytes", &cpu::Candidate::workspace_bytes)
      .def("__repr__", [](const cpu::Candidate& self) {
        return "<Candidate " + self.primitive + " " + self.implementation + " " + self.layout + ">";
      });

  m.def(
      "conv2d_candidates",
      [](Pass pass, Precision precision, int64_t batch, int64_t groups, int64_t in_channels,
         int64_t in_height, int64_t in_width, int64_t out_channels, int64_t out_height,
         int64_t out_width, int64_t kernel_height, int64_t kernel_width, int64_t stride_height,
         int64_t stride_width, int64_t pad_top, int64_t pad_left, int64_t pad_bottom,
         int64_t pad_right, int64_t dilation_height, int64_t dilation_width) {
        return cpu::conv2d_candidates(
            {batch, groups, in_channels, in_height, in_width, out_channels, out_height, out_width,
             kernel_height, kernel_width, stride_height, stride_width, pad_top, pad_left,
             pad_bottom, pad_right, dilation_height, dilation_width},
            pass, precision);
      },
      "pass_"_a, "precision"_a, py::kw_only(), "batch"_a, "groups"_a, "in_channels"_a,
      "in_height"_a, "in_width"_a, "out_channels"_a, "out_height"_a, "out_width"_a,
      "kernel_height"_a, "kernel_width"_a, "stride_height"_a, "stride_width"_a, "pad_top"_a,
      "pad_left"_a, "pad_bottom"_a, "pad_right"_a, "dilation_height"_a, "dilation_width"_a,
      py::call_guard<py::gil_scoped_release>(),
      "Implementations x layouts of a convolution, in the library's order.");

  m.def(
      "gemm_candidates",
      [](Pass pass, Precision precision, int64_t batch_count, int64_t rows, int64_t k, int64_t n) {
        return cpu::gemm_candidates({batch_count, rows, k, n}, pass, precision);
      },
      "pass_"_a, "precision"_a, py::kw_only(), "batch_count"_a, "m"_a, "k"_a, "n"_a,
      py::call_guard<py::gil_scoped_release>(),
      "Implementations x weight layouts of a matrix product, in the library's order.");

  m.def(
      "pool2d_candidates",
      [](Pass pass, Precision precision, PoolMode mode, int64_t batch, int64_t channels,
         int64_t in_height, int64_t in_width, int64_t out_height, int64_t out_width,
         int64_t kernel_height, int64_t kernel_width, int64_t stride_height, int64_t stride_width,
         int64_t pad_top, int64_t pad_left, int64_t pad_bottom, int64_t pad_right) {
        return cpu::pool2d_candidates({batch, channels, in_height, in_width, out_height, out_width,
                                       kernel_height, kernel_width, stride_height, stride_width,
                                       pad_top, pad_left, pad_bottom, pad_right, mode},
                                      pass, precision);
      },
      "pass_"_a, "precision"_a, "mode"_a, py::kw_only(), "batch"_a, "channels"_a, "in_height"_a,
      "in_width"_a, "out_height"_a, "out_width"_a, "kernel_height"_a, "kernel_width"_a,
      "stride_height"_a, "stride_width"_a, "pad_top"_a, "pad_left"_a, "pad_bottom"_a, "pad_right"_a,
      py::call_guard<py::gil_scoped_release>(),
      "Implementations x layouts of a pooling, in the library's order.");
}

}  // namespace pydlbench
