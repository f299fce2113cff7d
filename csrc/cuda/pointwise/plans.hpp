// Memory-bound layers on a GPU: every kernel of ours that computes one, as a plan.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/problem.hpp"
#include "cuda/mode.hpp"
#include "cuda/plan.hpp"

namespace pydlbench::cuda {

struct PointwiseProblem {
  std::string op;  // "relu", "batchnorm", ...
  std::int64_t batch, channels, height, width;
  std::map<std::string, double> numbers;  // parameters of the op: "epsilon", "keep", ...
  std::vector<std::int64_t> sources;      // channels of each source of a concatenation
};

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
