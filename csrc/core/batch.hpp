// Reduction of the batch of matrix products to as few dimensions as possible.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/problem.hpp"

namespace pydlbench {

// Returns an equivalent problem on the same memory. Merges neighbouring dimensions with the same
// broadcasting, drops dimensions of size one, and merges rows with the same weights into one
// product. src and weights then have the same number of dimensions. Sizes must be compatible
// (core/fields.hpp).
inline GemmProblem fold_batch(GemmProblem problem) {
  auto& src = problem.src_batch;
  auto& weights = problem.weights_batch;
  const auto rank = std::max(src.size(), weights.size());
  src.insert(src.begin(), rank - src.size(), 1);
  weights.insert(weights.begin(), rank - weights.size(), 1);

  std::vector<std::pair<std::int64_t, std::int64_t>> dims;
  const auto alike = [](const auto& left, const auto& right) {
    return (left.first == left.second) == (right.first == right.second) &&
           (left.first == 1) == (right.first == 1) && (left.second == 1) == (right.second == 1);
  };
  for (std::size_t i = 0; i < rank; ++i) {
    const std::pair dim{src[i], weights[i]};
    if (dim == std::pair<std::int64_t, std::int64_t>{1, 1}) continue;
    if (!dims.empty() && alike(dims.back(), dim)) {
      dims.back().first *= dim.first;
      dims.back().second *= dim.second;
    } else {
      dims.push_back(dim);
    }
  }
  if (!dims.empty() && dims.back().second == 1) {
    problem.m *= dims.back().first;
    dims.pop_back();
  }
  src.clear();
  weights.clear();
  for (const auto& [of_src, of_weights] : dims) {
    src.push_back(of_src);
    weights.push_back(of_weights);
  }
  return problem;
}

}  // namespace pydlbench
