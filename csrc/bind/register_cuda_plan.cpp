// Plans: ways to compute a layer on a GPU.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>

#include "bind/cuda_registers.hpp"
#include "cuda/plan.hpp"

namespace py = pybind11;

namespace pydlbench {

namespace {

const char* name_of(cuda::DataType type) {
  switch (type) {
    case cuda::DataType::float32:
      return "float32";
    case cuda::DataType::float16:
      return "float16";
    case cuda::DataType::bfloat16:
      return "bfloat16";
    case cuda::DataType::float8_e4m3:
      return "float8_e4m3";
    case cuda::DataType::int32:
      return "int32";
    case cuda::DataType::int8:
      return "int8";
  }
  return "unknown";
}

const char* name_of(cuda::Use use) {
  switch (use) {
    case cuda::Use::input:
      return "input";
    case cuda::Use::output:
      return "output";
    case cuda::Use::in_out:
      return "in-out";
    case cuda::Use::derived:
      return "derived";
  }
  return "unknown";
}

py::list tensors(const cuda::Plan& plan) {
  py::list result;
  for (const auto& spec : plan.tensors()) {
    py::dict one;
    one["role"] = spec.role;
    one["type"] = name_of(spec.type);
    one["dims"] = spec.dims;
    one["strides"] = spec.strides;
    one["use"] = name_of(spec.use);
    result.append(one);
  }
  return result;
}

template <auto Member>
auto fact() {
  return [](const cuda::Plan& plan) { return plan.facts().*Member; };
}

}  // namespace

void register_cuda_plan(py::module_& m) {
  using cuda::PlanFacts;
  py::class_<cuda::Plan, std::shared_ptr<cuda::Plan>>(m, "Plan")
      .def_property_readonly("primitive", fact<&PlanFacts::primitive>())
      .def_property_readonly("algorithm", fact<&PlanFacts::algorithm>())
      .def_property_readonly("library", fact<&PlanFacts::library>())
      .def_property_readonly("variant", fact<&PlanFacts::variant>())
      .def_property_readonly("layout", fact<&PlanFacts::layout>())
      .def_property_readonly("accumulate", fact<&PlanFacts::accumulate>())
      .def_property_readonly("tensor_cores", fact<&PlanFacts::tensor_cores>())
      .def_property_readonly("notes", fact<&PlanFacts::notes>())
      .def_property_readonly("runtime_compiled", fact<&PlanFacts::runtime_compiled>())
      .def_property_readonly("workspace_bytes", &cuda::Plan::workspace_bytes)
      .def_property_readonly("tensors", &tensors)
      .def("build", &cuda::Plan::prepare, py::call_guard<py::gil_scoped_release>())
      .def("__repr__", [](const cuda::Plan& plan) {
        const auto& facts = plan.facts();
        return "<Plan " + facts.primitive + " " + facts.algorithm + " " + facts.layout + ">";
      });
}

}  // namespace pydlbench
