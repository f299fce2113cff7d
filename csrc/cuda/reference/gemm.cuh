// Every element of a batch of matrix products in float64: a block computes a square of the result
// from strips that it converts to float64 once, which is most of the work where float64 is slow.
#pragma once

#include <cstdint>

#include "cuda/reference/deviation.cuh"

namespace pydlbench::cuda::reference {

inline constexpr int kSide = 16;
static_assert(kSide * kSide == kCheckThreads);

// result[b, i, j] = sum_t left[b, i, t] right[b, t, j], whichever pass it is.
struct Product {
  const float *left, *right;
  std::int64_t batch_count, rows, columns, terms;
  std::int64_t left_matrix, left_row, left_term, right_matrix, right_term, right_column;
};

__host__ __device__ inline Product product_of(const GemmCheck& what) {
  const auto m = what.problem.m, k = what.problem.k, n = what.problem.n;
  const auto count = what.problem.batch_count;
  if (what.pass == Pass::backward_data) {
    return {what.dst, what.weights, count, m, k, n, m * n, n, 1, k * n, 1, n};
  }
  if (what.pass == Pass::backward_weights) {
    return {what.src, what.dst, count, k, n, m, m * k, 1, k, m * n, n, 1};
  }
  return {what.src, what.weights, count, m, n, k, m * k, k, 1, k * n, n, 1};
}

__global__ void gemm_check_kernel(GemmCheck what, std::int64_t first, std::int64_t last,
                                  Deviation* records) {
  __shared__ double lefts[kSide][kSide], rights[kSide][kSide + 1];
  const auto p = product_of(what);
  const auto across = (p.columns + kSide - 1) / kSide, down = (p.rows + kSide - 1) / kSide;
  const int row = static_cast<int>(threadIdx.x) / kSide;
  const int column = static_cast<int>(threadIdx.x) % kSide;
  auto worst = nothing_compared();
  for (auto tile = first + blockIdx.x; tile < last; tile += gridDim.x) {
    const auto matrix = tile / (across * down);
    const auto i = tile / across % down * kSide + row, j = tile % across * kSide + column;
    const float* left = p.left + matrix * p.left_matrix;
    const float* right = p.right + matrix * p.right_matrix;
    Sum sum{0.0, 0.0};
    for (std::int64_t strip = 0; strip < p.terms; strip += kSide) {
      const auto across_term = strip + column, down_term = strip + row;
      lefts[row][column] =
          i < p.rows && across_term < p.terms
              ? static_cast<double>(left[i * p.left_row + across_term * p.left_term])
              : 0.0;
      rights[row][column] =
          j < p.columns && down_term < p.terms
              ? static_cast<double>(right[down_term * p.right_term + j * p.right_column])
              : 0.0;
      __syncthreads();
      for (int t = 0; t < kSide; ++t) sum.add(lefts[row][t] * rights[t][column]);
      __syncthreads();
    }
    if (i >= p.rows || j >= p.columns) continue;
    if (what.fused) {
      sum.add(static_cast<double>(what.bias[(what.bias_per_matrix ? matrix * p.columns : 0) + j]));
    }
    const auto index = (matrix * p.rows + i) * p.columns + j;
    worst = both(worst, judge(what.output, index, sum, what.fused));
  }
  record(worst, records);
}

inline void launch_check(const GemmCheck& what, Deviation* records, cudaStream_t stream,
                         std::int64_t terms_per_launch = kTermsPerLaunch) {
  const auto p = product_of(what);
  const auto tiles =
      p.batch_count * ((p.rows + kSide - 1) / kSide) * ((p.columns + kSide - 1) / kSide);
  clear_records(records, stream);
  in_launches(tiles, kSide * kSide * p.terms, 1, terms_per_launch,
              [&](std::int64_t first, std::int64_t last, dim3 blocks) {
                launch(gemm_check_kernel, blocks, dim3(kCheckThreads), 0, stream, what, first, last,
                       records);
              });
}

}  // namespace pydlbench::cuda::reference
