// Plans of our own pooling kernels. No device is needed to list them.
#pragma once

#include <memory>
#include <vector>

#include "core/problem.hpp"
#include "cuda/mode.hpp"
#include "cuda/plan.hpp"

namespace pydlbench::cuda::pooling {

// Every kernel of ours for a layout. Throws Unsupported for images of 2**31 elements and more.
std::vector<std::shared_ptr<Plan>> own_plans(const Pool2dProblem& problem, Pass pass, DataType type,
                                             bool channels_last);

}  // namespace pydlbench::cuda::pooling
