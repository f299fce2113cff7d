// Matrix products on a GPU: every algorithm of cuBLASLt's heuristics that belongs to the mode.
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
// ReLU to the forward pass. Variants: "plain" (all matrices as the caller's, row-major) and
// "transposed" (some stored transposed, as the layout says). Workspaces are no larger than
// `workspace_limit` bytes. Throws Unsupported, with the reason, where there is no such algorithm.
std::vector<std::shared_ptr<Plan>> gemm_plans(const Device& device, const PlainGemm& problem,
                                              Pass pass, Mode mode, std::size_t workspace_limit,
                                              bool fused);

}  // namespace pydlbench::cuda
