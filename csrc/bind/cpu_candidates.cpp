// The search for candidates that compute a layer, given by its kind and its named fields.
#include <pybind11/native_enum.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>

#include "bind/fields.hpp"
#include "core/problem.hpp"
#include "cpu/candidate.hpp"
#include "cpu/plans.hpp"

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
      .value("int8", Precision::int8)
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
      "candidates",
      [](const std::string& kind, Pass pass, Precision precision, const py::dict& fields,
         bool thorough) {
        const auto given = fields_of(kind, fields);
        const py::gil_scoped_release release;
        return cpu::find_candidates(given, pass, precision, thorough);
      },
      "kind"_a, "pass_"_a, "precision"_a, "fields"_a, "thorough"_a = false,
      "Implementations x layouts of a layer, in the library's order; the layer's fields by name.");
}

}  // namespace pydlbench
