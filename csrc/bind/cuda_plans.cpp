// Bindings of plans (ways to compute a layer on a GPU) and of their float64 references.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bind/fields.hpp"
#include "cuda/cudnn/target.hpp"
#include "cuda/mode.hpp"
#include "cuda/plan.hpp"
#include "cuda/plans.hpp"
#include "cuda/reference/reference.hpp"
#include "cuda/runtime/device.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace pydlbench {

namespace {

constexpr std::size_t kWorkspaceLimit = std::size_t{1} << 33;

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
    case cuda::DataType::float4_e2m1:
      return "float4_e2m1";
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

void register_plan(py::module_& m) {
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

void register_searches(py::module_& m) {
  m.def(
      "plans",
      [](const cuda::Device* device, const std::string& kind, const std::string& pass,
         const std::string& mode, const py::dict& fields, const std::string& layout,
         std::size_t workspace_limit, bool fused, bool sweep,
         const std::optional<std::string>& device_properties) {
        const auto given = fields_of(kind, fields);
        const py::gil_scoped_release release;
        return cuda::plans_of(device, given, cuda::pass_of(pass), cuda::mode_of(mode),
                              {layout, workspace_limit, fused, sweep, device_properties});
      },
      "device"_a.none(true), "kind"_a, "pass_"_a, "mode"_a, "fields"_a, py::kw_only(),
      "layout"_a = "best", "workspace_limit"_a = kWorkspaceLimit, "fused"_a = false,
      "sweep"_a = true, "device_properties"_a = py::none(),
      "All plans of a layer, in the library's order; the layer's fields by name. fused: "
      "with bias and ReLU. sweep: of convolutions also what cuDNN's own lists leave out. Without a "
      "device, plans of a convolution for the GPU that device_properties describes: they can be "
      "built, not run.");

  m.def("device_properties", &cuda::cudnn::device_properties, "device"_a,
        py::call_guard<py::gil_scoped_release>(),
        "The GPU's properties as cuDNN serialises them (JSON).");
}

void register_references(py::module_& m) {
  py::class_<cuda::Reference, std::shared_ptr<cuda::Reference>>(m, "Reference")
      .def("__repr__",
           [](const cuda::Reference& self) { return "<Reference of " + self.role() + ">"; });

  m.def(
      "reference",
      [](const std::string& kind, const std::string& pass, const py::dict& fields, bool fused) {
        return cuda::reference_of(fields_of(kind, fields), cuda::pass_of(pass), fused);
      },
      "kind"_a, "pass_"_a, "fields"_a, py::kw_only(), "fused"_a = false,
      "The float64 reference on the device; None if only the host has one.");
}

}  // namespace

void register_cuda_plans(py::module_& m) {
  register_plan(m);
  register_searches(m);
  register_references(m);
  // cuDNN must not be called after CUDA is unloaded.
  py::module_::import("atexit").attr("register")(
      py::cpp_function([] { cuda::cudnn::release_handles(); }));
}

}  // namespace pydlbench
