// From what the blocks found to one comparison, and from problems to lengths of sums. No CUDA here.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cuda/reference/comparison.hpp"

namespace pydlbench::cuda {

inline Comparison summary(const std::vector<Deviation>& records, const TensorSpec& output,
                          std::int64_t terms) {
  Deviation worst{0.0, 0.0, 0.0, -1, 0, 0};
  for (const auto& one : records) worst = both(worst, one);
  Comparison result{0.0, {}, 0.0, 0.0, worst.unwritten, worst.infinite, output.elements(), terms};
  if (worst.index < 0) return result;
  result.max_error = worst.error;
  result.got = worst.got;
  result.expected = worst.expected;
  result.where.resize(output.dims.size());
  auto index = worst.index;
  for (std::size_t axis = output.dims.size(); axis-- > 0;) {
    result.where[axis] = index % output.dims[axis];
    index /= output.dims[axis];
  }
  return result;
}

// The tensor that a pass writes.
inline const char* result_role(Pass pass) {
  if (pass == Pass::backward_data) return "src";
  return pass == Pass::backward_weights ? "weights" : "dst";
}

inline std::int64_t sum_terms(Pass pass, const Conv2dProblem& p, bool fused) {
  if (pass == Pass::backward_weights) return p.batch * p.out_height * p.out_width;
  const auto channels = pass == Pass::backward_data ? p.out_channels : p.in_channels;
  return channels / p.groups * p.kernel_height * p.kernel_width + (fused ? 1 : 0);
}

inline std::int64_t sum_terms(Pass pass, const GemmProblem& p, bool fused) {
  if (pass == Pass::backward_data) return p.n;
  return pass == Pass::backward_weights ? p.m : p.k + (fused ? 1 : 0);
}

// A maximum is one of the inputs; its gradient is a sum over the windows that may hold a pixel.
inline std::int64_t sum_terms(Pass pass, const Pool2dProblem& p) {
  if (pass != Pass::backward_data) {
    return p.mode == PoolMode::max ? 0 : p.kernel_height * p.kernel_width;
  }
  const auto overlap = [](std::int64_t kernel, std::int64_t stride, std::int64_t windows) {
    return std::min(windows, (kernel + stride - 1) / stride);
  };
  return overlap(p.kernel_height, p.stride_height, p.out_height) *
         overlap(p.kernel_width, p.stride_width, p.out_width);
}

inline std::int64_t result_elements(Pass pass, const Conv2dProblem& p) {
  if (pass == Pass::backward_data) return p.batch * p.in_channels * p.in_height * p.in_width;
  if (pass == Pass::backward_weights) {
    return p.out_channels * (p.in_channels / p.groups) * p.kernel_height * p.kernel_width;
  }
  return p.batch * p.out_channels * p.out_height * p.out_width;
}

inline std::int64_t result_elements(Pass pass, const GemmProblem& p) {
  if (pass == Pass::backward_data) return p.batch_count * p.m * p.k;
  return p.batch_count * (pass == Pass::backward_weights ? p.k * p.n : p.m * p.n);
}

inline std::int64_t result_elements(Pass pass, const Pool2dProblem& p) {
  const bool backward = pass == Pass::backward_data;
  return p.batch * p.channels * (backward ? p.in_height * p.in_width : p.out_height * p.out_width);
}

}  // namespace pydlbench::cuda
