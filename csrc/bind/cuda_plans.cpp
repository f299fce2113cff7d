// Plans, the ways to compute a layer on a GPU, and the float64 references that their results are
// held against.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "bind/problems.hpp"
#include "core/error.hpp"
#include "core/problem.hpp"
#include "cuda/cublaslt/plans.hpp"
#include "cuda/cudnn/plans.hpp"
#include "cuda/cudnn/target.hpp"
#include "cuda/mode.hpp"
#include "cuda/plan.hpp"
#include "cuda/pointwise/plans.hpp"
#include "cuda/pooling/plans.hpp"
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

cuda::cudnn::Target target_of(const cuda::Device* device,
                              const std::optional<std::string>& properties) {
  if (device != nullptr) return cuda::cudnn::Target::of(*device);
  if (properties) return cuda::cudnn::Target::of_properties(*properties);
  throw std::invalid_argument("conv2d_plans: neither a device nor device_properties");
}

PoolMode pool_mode_of(const std::string& name) {
  if (name == "max") return PoolMode::max;
  if (name == "avg-include-padding") return PoolMode::avg_include_padding;
  if (name == "avg-exclude-padding") return PoolMode::avg_exclude_padding;
  throw Unsupported("pool mode " + name +
                    ": no such mode; there is: max, avg-include-padding, avg-exclude-padding");
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
      "conv2d_plans",
      [](const cuda::Device* device, const std::string& pass, const std::string& mode,
         const std::string& layout, std::size_t workspace_limit, bool fused, bool sweep,
         const std::optional<std::string>& device_properties, const py::kwargs& fields) {
        const auto problem = problem_of<Conv2dProblem>(fields);
        const py::gil_scoped_release release;
        return cuda::cudnn::conv2d_plans(target_of(device, device_properties), problem,
                                         cuda::pass_of(pass), cuda::mode_of(mode),
                                         {layout, workspace_limit, fused, sweep});
      },
      "device"_a.none(true), "pass_"_a, "mode"_a, py::kw_only(), "layout"_a = "best",
      "workspace_limit"_a = kWorkspaceLimit, "fused"_a = false, "sweep"_a = true,
      "device_properties"_a = py::none(),
      "Execution plans of a convolution, in cuDNN's order. Without a device, plans for the GPU "
      "that "
      "device_properties describes: they can be built, not run.");

  m.def("device_properties", &cuda::cudnn::device_properties, "device"_a,
        py::call_guard<py::gil_scoped_release>(),
        "The GPU's properties as cuDNN serialises them (JSON).");

  m.def(
      "gemm_plans",
      [](const cuda::Device& device, const std::string& pass, const std::string& mode,
         std::size_t workspace_limit, bool fused, const py::kwargs& fields) {
        const auto problem = problem_of<GemmProblem>(fields);
        const py::gil_scoped_release release;
        return cuda::gemm_plans(device, problem, cuda::pass_of(pass), cuda::mode_of(mode),
                                workspace_limit, fused);
      },
      "device"_a, "pass_"_a, "mode"_a, py::kw_only(), "workspace_limit"_a = kWorkspaceLimit,
      "fused"_a = false,
      "Algorithms x storages of a matrix product, in the library's order; fused: bias and ReLU.");

  m.def(
      "pool2d_plans",
      [](const cuda::Device& device, const std::string& pass, const std::string& mode,
         const std::string& pool_mode, const std::string& layout, const py::kwargs& fields) {
        const auto problem = problem_of(fields, pool_mode_of(pool_mode));
        const py::gil_scoped_release release;
        return cuda::pool2d_plans(device, problem, cuda::pass_of(pass), cuda::mode_of(mode),
                                  layout);
      },
      "device"_a, "pass_"_a, "mode"_a, "pool_mode"_a, py::kw_only(), "layout"_a = "best",
      "Implementations x layouts of a pooling: cuDNN's and kernels of our own.");

  m.def(
      "pointwise_plans",
      [](const cuda::Device& device, const std::string& pass, const std::string& mode,
         const std::string& op, const std::string& layout, const py::kwargs& fields) {
        const auto& facts = device.facts();
        return cuda::pointwise_plans(
            problem_of(op, fields), cuda::pass_of(pass), cuda::mode_of(mode), layout,
            {facts.capability(), facts.multiprocessors, facts.threads_per_multiprocessor});
      },
      "device"_a, "pass_"_a, "mode"_a, "op"_a, py::kw_only(), "layout"_a = "best",
      "Every kernel of ours for a memory-bound layer, in each layout that makes a difference; the "
      "operation's parameters by name.");
}

// The device is that of the arena that is compared; it is taken for the sake of the plans' own
// signatures.
void register_references(py::module_& m) {
  py::class_<cuda::Reference, std::shared_ptr<cuda::Reference>>(m, "Reference")
      .def("__repr__",
           [](const cuda::Reference& self) { return "<Reference of " + self.role() + ">"; });

  m.def(
      "conv2d_reference",
      [](const cuda::Device&, const std::string& pass, bool fused, const py::kwargs& fields) {
        return cuda::conv2d_reference(cuda::pass_of(pass), problem_of<Conv2dProblem>(fields),
                                      fused);
      },
      "device"_a, "pass_"_a, py::kw_only(), "fused"_a = false);
  m.def(
      "gemm_reference",
      [](const cuda::Device&, const std::string& pass, bool fused, const py::kwargs& fields) {
        return cuda::gemm_reference(cuda::pass_of(pass), problem_of<GemmProblem>(fields), fused);
      },
      "device"_a, "pass_"_a, py::kw_only(), "fused"_a = false);
  m.def(
      "pool2d_reference",
      [](const cuda::Device&, const std::string& pass, const std::string& pool_mode,
         const py::kwargs& fields) {
        return cuda::pool2d_reference(cuda::pass_of(pass),
                                      problem_of(fields, pool_mode_of(pool_mode)));
      },
      "device"_a, "pass_"_a, "pool_mode"_a);
}

}  // namespace

void register_cuda_plans(py::module_& m) {
  register_plan(m);
  register_searches(m);
  register_references(m);
  // While CUDA is still there: nothing may call cuDNN after it is unloaded.
  py::module_::import("atexit").attr("register")(
      py::cpp_function([] { cuda::cudnn::release_handles(); }));
}

}  // namespace pydlbench
