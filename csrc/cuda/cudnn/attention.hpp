// cuDNN's plans of scaled dot-product attention, each one kernel or a few.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "core/problem.hpp"
#include "cuda/cudnn/target.hpp"
#include "cuda/mode.hpp"
#include "cuda/plan.hpp"

namespace pydlbench::cuda::cudnn {

// Forward, or the gradients of queries, keys and values; the latter read the logarithms of the
// forward pass's sums, which the plan computes beforehand. Throws Unsupported, with the reason, if
// there is none.
std::vector<std::shared_ptr<Plan>> attention_plans(const Target& target,
                                                   const AttentionProblem& problem, Pass pass,
                                                   Mode mode, std::size_t workspace_limit);

}  // namespace pydlbench::cuda::cudnn
