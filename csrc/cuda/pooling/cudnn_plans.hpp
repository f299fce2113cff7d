// Plans of cuDNN's pooling.
#pragma once

#include <memory>
#include <vector>

#include "core/problem.hpp"
#include "cuda/mode.hpp"
#include "cuda/plan.hpp"

namespace pydlbench::cuda {
class Device;
}

namespace pydlbench::cuda::pooling {

// Why cuDNN cannot compute this pooling, or null: it pads both ends equally, with 32-bit sizes.
const char* beyond_cudnn(const PoolProblem& problem);

// cuDNN's plans in a layout, for problems that are not beyond_cudnn(). Throws Unsupported if cuDNN
// is not loaded.
std::vector<std::shared_ptr<Plan>> cudnn_plans(const Device& device, const PoolProblem& problem,
                                               Pass pass, DataType type, bool channels_last);

}  // namespace pydlbench::cuda::pooling
