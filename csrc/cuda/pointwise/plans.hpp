// Memory-bound layers on a GPU: every kernel of ours that computes one, as a plan.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/problem.hpp"
#include "cuda/mode.hpp"
#include "cuda/plan.hpp"

namespace pydlbench::cuda {

// What the choice of grids depends on.
struct PointwiseTarget {
  int capability, multiprocessors, threads_per_multiprocessor;
};

// `layout` is "best" or "any" (all), "nchw" or "nhwc". Throws Unsupported where the op has no such
// pass, the GPU no such mode, or the mode no such kernels (fp8-tc); std::invalid_argument where a
// parameter is missing, unknown or senseless.
std::vector<std::shared_ptr<Plan>> pointwise_plans(const PointwiseProblem& problem, Pass pass,
                                                   Mode mode, const std::string& layout,
                                                   const PointwiseTarget& target);

}  // namespace pydlbench::cuda
