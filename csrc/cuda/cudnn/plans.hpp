// All of cuDNN's plans of a convolution in a precision mode.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "core/problem.hpp"
#include "cuda/cudnn/target.hpp"
#include "cuda/plan.hpp"

namespace pydlbench::cuda::cudnn {

struct PlanRequest {
  std::string layout = "best";  // "nchw", "nhwc"; "best" and "any" are both
  std::size_t workspace_limit = std::size_t{1} << 33;
  bool fused = false;  // with bias and ReLU; forward only
  bool sweep = true;   // also engines that are not in cuDNN's lists
};

// The plans by layout in cuDNN's order, not built. If opposite sides have different padding, also
// plans with separate padding. Throws Unsupported, with the reason, if there are none.
std::vector<std::shared_ptr<Plan>> convolution_plans(const Target& target,
                                                     const ConvProblem& problem, Pass pass,
                                                     Mode mode, const PlanRequest& request);

}  // namespace pydlbench::cuda::cudnn
