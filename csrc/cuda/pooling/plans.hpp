// Pooling on a GPU: cuDNN's kernels and ours, NCHW and NHWC, maximum and average.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/problem.hpp"
#include "cuda/mode.hpp"
#include "cuda/plan.hpp"

namespace pydlbench::cuda {

class Device;

// `layout`: best or any (both layouts), nchw, nhwc. Variants are "nchw" and "nhwc". The backward
// pass of max pooling reads the forward pass's source (role "src", input) and the gradient ("dst"),
// and writes the other gradient (role "src", output). cuDNN is left out if it is not loaded or does
// not support the padding; for our kernels see own_plan(). Throws Unsupported for fp8-tc and for
// backward-weights.
std::vector<std::shared_ptr<Plan>> pool2d_plans(const Device& device, const PoolProblem& problem,
                                                Pass pass, Mode mode, const std::string& layout);

}  // namespace pydlbench::cuda
