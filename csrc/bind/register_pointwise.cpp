// Candidates of memory-bound layers.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <string>
#include <vector>

#include "bind/registers.hpp"
#include "cpu/pointwise/plans.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace pydlbench {

namespace {

// Parameters are numbers, but for the channels of what is joined.
cpu::PointwiseProblem problem_of(const std::string& op, std::int64_t batch, std::int64_t channels,
                                 std::int64_t height, std::int64_t width,
                                 const py::kwargs& parameters) {
  cpu::PointwiseProblem problem{op, batch, channels, height, width, {}, {}};
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

void register_pointwise(py::module_& m) {
  m.def(
      "pointwise_candidates",
      [](Pass pass, Precision precision, const std::string& op, std::int64_t batch,
         std::int64_t channels, std::int64_t height, std::int64_t width, bool thorough,
         const py::kwargs& parameters) {
        const auto problem = problem_of(op, batch, channels, height, width, parameters);
        const py::gil_scoped_release release;
        return cpu::pointwise_candidates(problem, pass, precision, thorough);
      },
      "pass_"_a, "precision"_a, "op"_a, py::kw_only(), "batch"_a, "channels"_a, "height"_a,
      "width"_a, "thorough"_a = false,
      "Implementations x layouts of a memory-bound layer; parameters by name.");
}

}  // namespace pydlbench
