// Problems from the numbers that a test passes: one for each field, in the order that
// problem_fields() of reference.cpp gives.
#pragma once

#include <cstdint>

#include "core/problem.hpp"

inline pydlbench::GemmProblem gemm_problem(std::int64_t batch_count, std::int64_t m, std::int64_t k,
                                           std::int64_t n) {
  pydlbench::GemmProblem problem{};
  problem.batch_count = batch_count;
  problem.m = m, problem.k = k, problem.n = n;
  return problem;
}

// One number for each field, in the order that problem_fields() of reference.cpp gives.
template <typename Problem>
Problem problem_from(const std::int64_t* sizes) {
  Problem problem{};
  for (const auto& field : Problem::fields) problem.*field.size = *sizes++;
  return problem;
}
