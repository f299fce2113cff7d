// Plans of our own pooling kernels, where they have a case. No device is needed.
#pragma once

#include <memory>

#include "core/problem.hpp"
#include "cuda/mode.hpp"
#include "cuda/plan.hpp"

namespace pydlbench::cuda::pooling {

// Our kernel for a layout, or null where cuDNN's is all there need be.
//
// For maxima in training ours moves fewer bytes: the gradient is found by an argmax of one byte,
// where cudnnPoolingBackward() reads source and result again. Of 2 x 2 windows in float32 that is
// 1.3 times the source against 2.5 times. For maxima in inference and for averages both move the
// same, cuDNN has all of our types, and of its pooling only the gradient of CUDNN_POOLING_MAX is
// documented to differ from run to run (CUDNN_POOLING_MAX_DETERMINISTIC beside it does not): there
// ours only stands in for what cuDNN cannot express, or where it is not there.
//
// Args: `by_cudnn`: whether cuDNN computes this. Throws Unsupported where neither does: an argmax
// of one byte tells 256 places apart.
std::shared_ptr<Plan> own_plan(const PoolProblem& problem, Pass pass, DataType type,
                               bool channels_last, bool by_cudnn);

}  // namespace pydlbench::cuda::pooling
