// Every way in which cuDNN computes a convolution in a precision mode.
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
  bool sweep = true;   // also what cuDNN's own lists leave out
};

// Layout by layout in cuDNN's own order, none of them built. Where opposite sides are padded
// differently, also with the padding done apart. Throws Unsupported with one sentence where the
// mode or the problem leaves nothing.
std::vector<std::shared_ptr<Plan>> convolution_plans(const Target& target,
                                                     const ConvProblem& problem, Pass pass,
                                                     Mode mode, const PlanRequest& request);

}  // namespace pydlbench::cuda::cudnn
