// The tensors of a pooling, and common facts of its plans.
#pragma once

#include <string>

#include "core/problem.hpp"
#include "cuda/plan.hpp"
#include "cuda/tensor.hpp"

namespace pydlbench::cuda::pooling {

inline TensorSpec tensor(const char* role, DataType type, std::vector<std::int64_t> dims,
                         bool channels_last, Use use) {
  auto strides = channels_last ? channels_last_strides(dims) : plain_strides(dims);
  return {role, type, std::move(dims), std::move(strides), use};
}

inline TensorSpec src_tensor(const PoolProblem& p, DataType type, bool channels_last, Use use) {
  return tensor("src", type, {p.batch, p.channels, p.in_size[0], p.in_size[1]}, channels_last, use);
}

// A tensor with the shape of the result.
inline TensorSpec dst_tensor(const char* role, const PoolProblem& p, DataType type,
                             bool channels_last, Use use) {
  return tensor(role, type, {p.batch, p.channels, p.out_size[0], p.out_size[1]}, channels_last,
                use);
}

inline PlanFacts facts(Pass pass, bool channels_last) {
  PlanFacts facts;
  facts.primitive = is_forward(pass) ? "pooling forward" : "pooling backward-data";
  facts.variant = channels_last ? "nhwc" : "nchw";
  facts.layout = "src " + facts.variant + ", dst " + facts.variant;
  facts.accumulate = "float32";
  facts.tensor_cores = false;
  return facts;
}

}  // namespace pydlbench::cuda::pooling
