// Problems in the form that GPU kernels support: images of at least two sides, batches of one
// dimension.
#pragma once

#include <cstdint>
#include <string>

#include "core/batch.hpp"
#include "core/error.hpp"
#include "core/problem.hpp"

namespace pydlbench::cuda {

// A matrix product, batch_count times.
struct PlainGemm {
  std::int64_t m, k, n, batch_count;
};

inline PlainGemm plain(const GemmProblem& given) {
  const auto problem = fold_batch(given);
  if (problem.src_batch != problem.weights_batch) {
    throw Unsupported("products that repeat one of their operands have no native kernel for GPUs");
  }
  return {problem.m, problem.k, problem.n, problem.src_batch.empty() ? 1 : problem.src_batch[0]};
}

// Converts images of one side to two sides, of which the inner one is the given one.
template <typename Problem>
Problem plain(Problem problem) {
  if (problem.sides > 1) return problem;
  for (const auto& field : Windows::side_fields) {
    auto& sizes = problem.*field.sizes;
    const bool is_pad = field.sizes == &Windows::pad_before || field.sizes == &Windows::pad_after;
    sizes[1] = sizes[0];
    sizes[0] = is_pad ? 0 : 1;
  }
  problem.sides = 2;
  return problem;
}

}  // namespace pydlbench::cuda
