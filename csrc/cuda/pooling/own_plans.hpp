// Plans of our own pooling kernels, if they have an advantage. No device is needed.
#pragma once

#include <memory>

#include "core/problem.hpp"
#include "cuda/mode.hpp"
#include "cuda/plan.hpp"

namespace pydlbench::cuda::pooling {

// Our kernel for a layout, or null if cuDNN's is sufficient.
//
// For maxima in training ours moves fewer bytes: the gradient uses an argmax of one byte, while
// cudnnPoolingBackward() reads source and result again. For 2 x 2 windows in float32 that is 1.3
// times the size of the source instead of 2.5 times. For maxima in inference and for averages both
// move the same, and cuDNN supports all of our types (with CUDNN_POOLING_MAX_DETERMINISTIC for
// reproducible gradients); there ours is only for problems that cuDNN does not support, or without
// cuDNN.
//
// Args: `by_cudnn`: whether cuDNN computes this. Throws Unsupported if neither does: an argmax of
// one byte has 256 values.
std::shared_ptr<Plan> own_plan(const PoolProblem& problem, Pass pass, DataType type,
                               bool channels_last, bool by_cudnn);

}  // namespace pydlbench::cuda::pooling
