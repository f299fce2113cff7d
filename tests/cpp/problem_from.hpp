// Problems from the numbers that a test passes: one for each field, in the order that
// problem_fields() of reference.cpp gives.
#pragma once

#include <cstdint>

#include "core/problem.hpp"
#include "cuda/plain.hpp"

inline pydlbench::cuda::PlainGemm gemm_problem(std::int64_t batch_count, std::int64_t m,
                                               std::int64_t k, std::int64_t n) {
  return {m, k, n, batch_count};
}

// Windows of two sides.
template <typename Problem>
Problem problem_from(const std::int64_t* sizes) {
  Problem problem{};
  for (const auto& field : Problem::fields) problem.*field.size = *sizes++;
  problem.sides = 2;
  for (const auto& field : pydlbench::Windows::side_fields) {
    for (int i = 0; i < problem.sides; ++i) (problem.*field.sizes)[i] = *sizes++;
  }
  return problem;
}
