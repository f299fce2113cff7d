// The inner loops of memory-bound layers, compiled once per instruction set.
//
// Each runs on one thread and `count` contiguous elements; the caller divides the work. Tensors are
// float or bfloat16 (all tensors of a call have the same type), arithmetic and parameters are
// float. `streaming` stores bypass the caches if the target is aligned, and are not ordered with
// others: a fence has to follow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace pydlbench::cpu::pointwise {

using Index = std::int64_t;

// Floats in the longest vector of all instruction sets.
constexpr Index kMaxLanes = 16;
// Columns that a loop along an axis processes at a time.
constexpr Index kMaxColumns = 256;

// (src - mean) x scale + bias
struct Affine {
  float mean, scale, bias;
};
// factor (dy - offset - (x - mean) slope)
struct GradientTerms {
  float mean, factor, slope, offset;
};
// The same parameters for contiguous channels: those of element i are at index i % period. A period
// is a multiple of the channels, followed by space for kMaxLanes floats.
struct AffineTile {
  Index period;
  const float *mean, *scale, *bias;
};
struct GradientTile {
  Index period;
  const float *mean, *factor, *slope, *offset;
};
struct Window {
  Index half;  // channels on either side
  float alpha_per_size, beta, k;
};
struct Kept {
  std::uint32_t last;  // the largest hash that is kept
  float scale;
};

// Operations on up to three operands x, y and z; see pydlbench.ops.tensors.
enum class Arithmetic {
  abs,
  neg,
  square,
  cube,
  sqrt,
  rsqrt,
  rint,
  floor,
  ceil,
  sign,
  xlogx,
  hardshrink,
  softshrink,
  add,
  mul,
  div,
  max,
  min,
  leaky_relu,
  glu,
  swiglu,
  xlogy,
  threshold,
  add_square,
  sum3,
  lerp,
  addcmul,
  addcdiv,
  clamp,
  leaky_relu_gradient,
  glu_gradient,
  swiglu_gradient,
  // With a mask of bytes as the third operand.
  select,
  // With a mask as the result.
  eq,
  ne,
  lt,
  le,
  gt,
  ge
};

struct Kernels {
  int lanes;  // floats of a vector

  void (*copy)(const void* src, void* dst, Index count, bool streaming);
  void (*relu)(const void* src, void* dst, Index count, bool streaming);
  void (*relu_gradient)(const void* x, const void* dy, void* dx, Index count, bool streaming);
  void (*add)(const void* src, const void* src2, void* dst, Index count, bool streaming);
  // Element i has the number first + i x stride.
  void (*dropout)(const void* src, void* dst, Index count, std::uint64_t first,
                  std::uint64_t stride, Kept kept, bool streaming);

  float (*sum_squares)(const void* weights, Index count);
  void (*add_scaled)(void* to, const void* from, Index count, float factor);
  void (*momentum)(void* weights, void* velocity, const void* gradient, Index count, float rate,
                   float mu);

  void (*affine)(const void* src, void* dst, Index count, Affine one, bool streaming);
  void (*affine_tile)(const void* src, void* dst, Index count, const AffineTile& tile,
                      bool streaming);
  void (*gradient)(const void* x, const void* dy, void* dx, Index count, GradientTerms one,
                   bool streaming);
  void (*gradient_tile)(const void* x, const void* dy, void* dx, Index count,
                        const GradientTile& tile, bool streaming);

  // Sums of x - reference and of its square; of dy and of dy (x - reference).
  void (*moments)(const void* x, Index count, float reference, float* sums);
  void (*products)(const void* x, const void* dy, Index count, float reference, float* sums);
  // Added by index in the period to `sums` and `sums + period`, also with space behind them.
  void (*moments_tile)(const void* x, Index count, Index period, const float* reference,
                       float* sums);
  void (*products_tile)(const void* x, const void* dy, Index count, Index period,
                        const float* reference, float* sums);
  // As the moments, but only the first sum.
  float (*sum)(const void* src, Index count);
  void (*sum_tile)(const void* src, Index count, Index period, float* sums);

  // Channels `stride` elements apart, `count` pixels of each; buffers of lrn_buffer() floats.
  void (*lrn_planes)(const void* src, void* dst, Index channels, Index stride, Index count,
                     Window window, float* buffer);
  void (*lrn_planes_gradient)(const void* x, const void* dy, void* dx, Index channels, Index stride,
                              Index count, Window window, float* buffer);
  // One pixel with contiguous channels.
  void (*lrn_pixel)(const void* src, void* dst, Index channels, Window window, float* buffer);
  void (*lrn_pixel_gradient)(const void* x, const void* dy, void* dx, Index channels, Window window,
                             float* buffer);

  // Probabilities of a row, and its cross entropy; `buffer` has a float per class.
  float (*softmax)(const void* logits, void* probabilities, Index count, Index label,
                   float* buffer);
  void (*softmax_gradient)(const void* probabilities, void* dx, Index count, Index label,
                           float scale);

  // A row by the root of its mean square; the weights' gradient is added to `sums`.
  void (*rmsnorm)(const void* src, const void* weights, void* dst, Index count, float epsilon);
  void (*rmsnorm_gradient)(const void* x, const void* dy, const void* weights, void* dx,
                           float* sums, Index count, float epsilon);

  // Sums of all elements up to each one, or from each one to the end: of contiguous rows, or of up
  // to kMaxColumns columns of `count` rows.
  void (*cumsum)(const void* src, void* dst, Index rows, Index count, bool from_end);
  void (*cumsum_columns)(const void* src, void* dst, Index count, Index stride, Index width,
                         bool from_end);

  // The largest of `sign` times each number of a row, or of each of up to kMaxColumns columns of
  // `count` rows, and its index; likewise the logarithm of the sum of exponentials. There is room
  // for a vector behind the results of columns.
  void (*extreme_row)(const void* src, Index count, float sign, float* value, std::int32_t* index);
  void (*extreme_columns)(const void* src, Index count, Index stride, Index width, float sign,
                          float* values, std::int32_t* indices);
  float (*log_sum_exp_row)(const void* src, Index count);
  void (*log_sum_exp_columns)(const void* src, Index count, Index stride, Index width,
                              float* results);

  // Operands that are not `whole` have one element, which is broadcast. `op` determines their
  // number.
  void (*arithmetic)(Arithmetic op, const void* const* operands, const bool* whole, void* dst,
                     Index count, float number, bool streaming);
};

// Size of the buffer of the LRN loops for `channels` x `count`, in floats.
inline std::size_t lrn_buffer(Index channels, Index half, Index count) {
  const Index row = (count + kMaxLanes) / kMaxLanes * kMaxLanes;
  return static_cast<std::size_t>(3 * (channels + 2 * half + kMaxLanes) * row);
}

enum class Storage { float32, bfloat16 };

struct IsaKernels {
  std::string name;  // "avx512"
  const Kernels& (*of)(Storage);
};

// The instruction sets of this CPU, the widest first.
std::vector<IsaKernels> isa_kernels();

}  // namespace pydlbench::cpu::pointwise
