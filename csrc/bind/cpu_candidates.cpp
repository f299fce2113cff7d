// Problems by named fields, and the search for candidates that compute them.
#include <pybind11/native_enum.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>

#include "bind/problems.hpp"
#include "core/problem.hpp"
#include "cpu/candidate.hpp"
#include "cpu/pointwise/plans.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace pydlbench {

namespace {

void register_enumerations(py::module_& m) {
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
}

}  // namespace

void register_cpu_candidates(py::module_& m) {
  register_enumerations(m);

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
      [](Pass pass, Precision precision, const py::kwargs& fields) {
        const auto problem = problem_of<Conv2dProblem>(fields);
        const py::gil_scoped_release release;
        return cpu::conv2d_candidates(problem, pass, precision);
      },
      "pass_"_a, "precision"_a,
      "Implementations x layouts of a convolution, in the library's order.");

  m.def(
      "deconv2d_candidates",
      [](Pass pass, Precision precision, const py::kwargs& fields) {
        const auto problem = problem_of<Deconv2dProblem>(fields);
        const py::gil_scoped_release release;
        return cpu::deconv2d_candidates(problem, pass, precision);
      },
      "pass_"_a, "precision"_a,
      "Implementations x layouts of a transposed convolution, in the library's order.");

  m.def(
      "gemm_candidates",
      [](Pass pass, Precision precision, const py::kwargs& fields) {
        const auto problem = problem_of<GemmProblem>(fields);
        const py::gil_scoped_release release;
        return cpu::gemm_candidates(problem, pass, precision);
      },
      "pass_"_a, "precision"_a,
      "Implementations x weight layouts of a matrix product, in the library's order.");

  m.def(
      "pool2d_candidates",
      [](Pass pass, Precision precision, PoolMode mode, const py::kwargs& fields) {
        const auto problem = problem_of(fields, mode);
        const py::gil_scoped_release release;
        return cpu::pool2d_candidates(problem, pass, precision);
      },
      "pass_"_a, "precision"_a, "mode"_a,
      "Implementations x layouts of a pooling, in the library's order.");

  m.def(
      "pointwise_candidates",
      [](Pass pass, Precision precision, const std::string& op, bool thorough,
         const py::kwargs& fields) {
        const auto problem = problem_of(op, fields);
        const py::gil_scoped_release release;
        return cpu::pointwise_candidates(problem, pass, precision, thorough);
      },
      "pass_"_a, "precision"_a, "op"_a, py::kw_only(), "thorough"_a = false,
      "Implementations x layouts of a memory-bound layer; the operation's parameters by name.");
}

}  // namespace pydlbench
