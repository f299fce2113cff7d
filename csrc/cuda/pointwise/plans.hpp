// Plans of our own kernels for memory-bound layers on a GPU.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/problem.hpp"
#include "cuda/mode.hpp"
#include "cuda/plan.hpp"

namespace pydlbench::cuda {

// GPU properties for the choice of grids.
struct PointwiseTarget {
  int capability, multiprocessors, threads_per_multiprocessor;
};

// `layout` is "best" or "any" (all), "nchw" or "nhwc". Throws Unsupported if the op does not have
// the pass, or the GPU or the kernels do not support the mode (fp8-tc); std::invalid_argument if a
// parameter is missing, unknown or invalid.
std::vector<std::shared_ptr<Plan>> pointwise_plans(const PointwiseProblem& problem, Pass pass,
                                                   Mode mode, const std::string& layout,
                                                   const PointwiseTarget& target);

}  // namespace pydlbench::cuda
