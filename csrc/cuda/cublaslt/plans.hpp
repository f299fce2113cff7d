// Matrix products on a GPU: all algorithms of cuBLASLt's heuristics that belong to the mode.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "core/problem.hpp"
#include "cuda/mode.hpp"
#include "cuda/plain.hpp"
#include "cuda/plan.hpp"

namespace pydlbench::cuda {

class Device;

// dst = src x weights, or one of its gradients, batch_count times; `fused` adds bias [1, 1, n] and
// ReLU to the forward pass. Variants: "plain" (all matrices row-major) and "transposed" (some
// stored transposed, see the layout). Workspaces have at most `workspace_limit` bytes. Throws
// Unsupported, with the reason, if there is no such algorithm.
std::vector<std::shared_ptr<Plan>> gemm_plans(const Device& device, const PlainGemm& problem,
                                              Pass pass, Mode mode, std::size_t workspace_limit,
                                              bool fused);

}  // namespace pydlbench::cuda
