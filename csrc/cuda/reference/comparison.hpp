// What a comparison of a kernel's result with the float64 reference found.
#pragma once

#include <cstdint>
#include <vector>

#include "core/problem.hpp"
#include "cuda/tensor.hpp"
#include "cuda/view.hpp"

namespace pydlbench::cuda {

// The worst element of those that a block (or all of them) compared. The error is |y - ref| /
// (|ref| + s), where s is the root of the sum of the squared terms; nothing over nothing is no
// error, and NaN is the largest one.
struct Deviation {
  double error, got, expected;
  std::int64_t index;  // into the dense row-major result; -1 while nothing was compared
  std::int64_t unwritten, infinite;
};

// Whether `a` is what is to be reported of both; of equals the first one. (constexpr: for kernels
// too.)
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
  std::int64_t unwritten;  // NaN, as outputs are before a kernel runs
  std::int64_t infinite;
  std::int64_t elements;  // compared: all there are
  std::int64_t terms;     // length of the longest sum; 0 where the result must be exact
};

// Operands are dense float32, by the role of the tensor (or of the tensor whose gradient they are);
// those that a pass does not read are null. `output` is what the kernel wrote.
struct Conv2dCheck {
  Pass pass;
  Conv2dProblem problem;
  bool fused;  // bias and ReLU behind the forward pass
  const float *src, *weights, *bias, *dst;
  View output;
};

struct GemmCheck {
  Pass pass;
  GemmProblem problem;
  bool fused;
  bool bias_per_matrix;
  const float *src, *weights, *bias, *dst;
  View output;
};

struct Pool2dCheck {
  Pass pass;
  Pool2dProblem problem;
  const float *src, *dst;
  View output;
};

// Each launch adds what its blocks found to that many records.
inline constexpr unsigned kRecords = 2048;
// Multiply-adds of one launch: about half a second where float64 is slowest (64 per SM and four
// clocks make 20 G/s on a T4), so that a display's watchdog lets it pass.
inline constexpr std::int64_t kTermsPerLaunch = std::int64_t{1} << 32;

// Compare every element; the worst of each block goes to `records`, of which there are kRecords.
void check(const Conv2dCheck& what, Deviation* records, CUstream_st* stream);
void check(const GemmCheck& what, Deviation* records, CUstream_st* stream);
void check(const Pool2dCheck& what, Deviation* records, CUstream_st* stream);

}  // namespace pydlbench::cuda
