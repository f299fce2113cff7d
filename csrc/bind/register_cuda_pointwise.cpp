// Binds the search for plans of memory-bound layers.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bind/cuda_registers.hpp"
#include "cuda/mode.hpp"
#include "cuda/pointwise/plans.hpp"
#include "cuda/runtime/device.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace pydlbench {

namespace {

// Numbers by name; "sources" alone is a list of channels.
cuda::PointwiseProblem problem_of(const std::string& op, std::int64_t batch, std::int64_t channels,
                                  std::int64_t height, std::int64_t width,
                                  const py::kwargs& parameters) {
  cuda::PointwiseProblem problem{op, batch, channels, height, width, {}, {}};
  for (const auto& [key, value] : parameters) {
    const auto name = key.cast<std::string>();
    if (name == "sources") {
      problem.sources = value.cast<std::vector<std::int64_t>>();
    } else {
      problem.numbers[name] = value.cast<double>();
    }
  }
  return problem;
}

}  // namespace

void register_cuda_pointwise(py::module_& m) {
  m.def(
      "pointwise_plans",
      [](const std::shared_ptr<cuda::Device>& device, const std::string& pass,
         const std::string& mode, const std::string& op, std::int64_t batch, std::int64_t channels,
         std::int64_t height, std::int64_t width, const std::string& layout,
         const py::kwargs& parameters) {
        const auto& facts = device->facts();
        return cuda::pointwise_plans(
            problem_of(op, batch, channels, height, width, parameters), cuda::pass_of(pass),
            cuda::mode_of(mode), layout,
            {facts.capability(), facts.multiprocessors, facts.threads_per_multiprocessor});
      },
      "device"_a, "pass_"_a, "mode"_a, "op"_a, py::kw_only(), "batch"_a, "channels"_a, "height"_a,
      "width"_a, "layout"_a = "best",
      "Every kernel of ours for a memory-bound layer, in each layout that makes a difference; the "
      "op's parameters follow as keywords.");
}

}  // namespace pydlbench
