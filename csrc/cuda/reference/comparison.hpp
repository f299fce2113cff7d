// Results of the comparison of a kernel's result with the float64 reference, and lengths of sums.
// Independent of CUDA.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/problem.hpp"
#include "cuda/plain.hpp"
#include "cuda/tensor.hpp"

struct CUstream_st;

namespace pydlbench::cuda {

// The worst element of a block (or of all blocks). The error is |y - ref| / (|ref| + s), where s is
// the root of the sum of the squared terms, and the divisor at least the smallest normal number of
// the result's format. Zero over zero is no error, and NaN is the largest one.
struct Deviation {
  double error, got, expected;
  std::int64_t index;  // into the dense row-major result; -1 before any comparison
  std::int64_t unwritten, infinite;
};

// Whether `a` is worse; of equal ones, the first index. (constexpr, for use in kernels.)
constexpr bool is_worse(const Deviation& a, const Deviation& b) {
  if (a.index < 0 || b.index < 0) return a.index >= 0;
  const bool a_nan = a.error != a.error, b_nan = b.error != b.error;
  if (a_nan != b_nan) return a_nan;
  if (!a_nan && a.error != b.error) return a.error > b.error;
  return a.index < b.index;
}

constexpr Deviation both(const Deviation& a, const Deviation& b) {
  Deviation result = is_worse(a, b) ? a : b;
  result.unwritten = a.unwritten + b.unwritten;
  result.infinite = a.infinite + b.infinite;
  return result;
}

struct Comparison {
  double max_error;
  std::vector<std::int64_t> where;
  double got, expected;
  std::int64_t unwritten;  // NaN elements; outputs are filled with NaN before a kernel runs
  std::int64_t infinite;
  std::int64_t elements;  // number of elements
  std::int64_t terms;     // length of the longest sum; 0 if the result must be exact
};

// Operands are dense float32, named by the tensor's role (also for gradients), and null if the pass
// does not read them. `output` is the kernel's result.
struct Conv2dCheck {
  Pass pass;
  ConvProblem problem;
  bool fused;  // forward pass with bias and ReLU
  const float *src, *weights, *bias, *dst;
  View output;
};

struct GemmCheck {
  Pass pass;
  PlainGemm problem;
  bool fused;
  bool bias_per_matrix;
  const float *src, *weights, *bias, *dst;
  View output;
};

struct Pool2dCheck {
  Pass pass;
  PoolProblem problem;
  const float *src, *dst;
  View output;
};

// Number of records, which the blocks of all launches update.
inline constexpr unsigned kRecords = 2048;
// Multiply-adds of one launch: about half a second on GPUs with slow float64 (20 G/s on a T4), less
// than the time-out of a display's watchdog.
inline constexpr std::int64_t kTermsPerLaunch = std::int64_t{1} << 32;

// Compares all elements; `records` (of kRecords) get the worst of each block.
void check(const Conv2dCheck& what, Deviation* records, CUstream_st* stream,
           std::int64_t terms_per_launch = kTermsPerLaunch);
void check(const GemmCheck& what, Deviation* records, CUstream_st* stream,
           std::int64_t terms_per_launch = kTermsPerLaunch);
void check(const Pool2dCheck& what, Deviation* records, CUstream_st* stream,
           std::int64_t terms_per_launch = kTermsPerLaunch);

// Merges the blocks' records.
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

inline std::int64_t sum_terms(Pass pass, const ConvProblem& p, bool fused) {
  if (pass == Pass::backward_weights) return p.batch * p.out_size[0] * p.out_size[1];
  const auto channels = pass == Pass::backward_data ? p.out_channels : p.in_channels;
  return channels / p.groups * p.kernel[0] * p.kernel[1] + (fused ? 1 : 0);
}

inline std::int64_t sum_terms(Pass pass, const PlainGemm& p, bool fused) {
  if (pass == Pass::backward_data) return p.n;
  return pass == Pass::backward_weights ? p.m : p.k + (fused ? 1 : 0);
}

// Terms of a pooling's sums: a maximum is exact; its gradient is a sum over the windows of a pixel.
inline std::int64_t sum_terms(Pass pass, const PoolProblem& p) {
  if (pass != Pass::backward_data) {
    return p.mode == PoolMode::max ? 0 : p.kernel[0] * p.kernel[1];
  }
  const auto overlap = [](std::int64_t kernel, std::int64_t stride, std::int64_t windows) {
    return std::min(windows, (kernel + stride - 1) / stride);
  };
  return overlap(p.kernel[0], p.stride[0], p.out_size[0]) *
         overlap(p.kernel[1], p.stride[1], p.out_size[1]);
}

inline std::int64_t result_elements(Pass pass, const ConvProblem& p) {
  if (pass == Pass::backward_data) return p.batch * p.in_channels * p.in_size[0] * p.in_size[1];
  if (pass == Pass::backward_weights) {
    return p.out_channels * (p.in_channels / p.groups) * p.kernel[0] * p.kernel[1];
  }
  return p.batch * p.out_channels * p.out_size[0] * p.out_size[1];
}

inline std::int64_t result_elements(Pass pass, const PlainGemm& p) {
  if (pass == Pass::backward_data) return p.batch_count * p.m * p.k;
  return p.batch_count * (pass == Pass::backward_weights ? p.k * p.n : p.m * p.n);
}

inline std::int64_t result_elements(Pass pass, const PoolProblem& p) {
  const bool backward = pass == Pass::backward_data;
  return p.batch * p.channels *
         (backward ? p.in_size[0] * p.in_size[1] : p.out_size[0] * p.out_size[1]);
}

}  // namespace pydlbench::cuda
