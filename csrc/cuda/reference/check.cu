// Comparison of every element of a result with a float64 reference by the definition.
#include <cmath>
#include <cstdint>

#include "cuda/element.cuh"
#include "cuda/reference/comparison.hpp"

namespace pydlbench::cuda::reference {

inline constexpr unsigned kCheckThreads = 256;

// The deviation of an element, and the worst one of a block, always in the same order.
__device__ inline Deviation nothing_compared() { return {0.0, 0.0, 0.0, -1, 0, 0}; }

__device__ inline Deviation deviation_of(double got, double expected, double scale,
                                         std::int64_t index) {
  Deviation found{0.0, got, expected, index, 0, 0};
  if (got != got) {
    found.unwritten = 1;
    found.error = got;
  } else if (got != expected) {
    found.infinite = got - got != 0.0;
    found.error = fabs(got - expected) / scale;
  }
  return found;
}

// Merges the deviations of a block's threads into its record. All threads must call it.
__device__ inline void record(const Deviation& mine, Deviation* records) {
  __shared__ Deviation found[kCheckThreads];
  found[threadIdx.x] = mine;
  __syncthreads();
  for (unsigned half = kCheckThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half)
      found[threadIdx.x] = both(found[threadIdx.x], found[threadIdx.x + half]);
    __syncthreads();
  }
  if (threadIdx.x == 0) records[blockIdx.x] = both(records[blockIdx.x], found[0]);
}

// A reference value and the sum of the squares of its terms.
struct Sum {
  double value, squares;

  __device__ __forceinline__ void add(double term) {
    value += term;
    squares += term * term;
  }
};

// With bias and ReLU the error is relative to the sum before the ReLU: if that is about zero, a
// correct kernel may be on either side of the kink. Results below the smallest normal number of
// their format have fewer digits, so errors are relative to at least that number, as on the CPU
// (pydlbench/verification).
__device__ inline Deviation deviation_of(const View& output, std::int64_t index, const Sum& sum,
                                         bool relu) {
  const double expected = relu && sum.value < 0.0 ? 0.0 : sum.value;
  const double scale = fmax(fabs(sum.value) + sqrt(sum.squares), smallest_normal(output.type));
  const auto at = offset(output, index);
  // Sums of integers may need more digits than float32 has.
  const double got = output.type == DataType::int32
                         ? static_cast<double>(static_cast<const std::int32_t*>(output.data)[at])
                         : static_cast<double>(load(output.data, output.type, at));
  return deviation_of(got, expected, scale, index);
}

// The sum over the block, in the same order each time; valid in thread 0.
__device__ inline Sum block_sum(const Sum& mine) {
  __shared__ Sum sums[kCheckThreads];
  __syncthreads();  // the former sums are no longer read
  sums[threadIdx.x] = mine;
  __syncthreads();
  for (unsigned half = kCheckThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) {
      sums[threadIdx.x].value += sums[threadIdx.x + half].value;
      sums[threadIdx.x].squares += sums[threadIdx.x + half].squares;
    }
    __syncthreads();
  }
  return sums[0];
}

__global__ void clear_records_kernel(Deviation* records) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < kRecords) records[i] = nothing_compared();
}

inline void clear_records(Deviation* records, cudaStream_t stream) {
  launch(clear_records_kernel, dim3((kRecords + kCheckThreads - 1) / kCheckThreads),
         dim3(kCheckThreads), 0, stream, records);
}

// Calls start(first, last, blocks) for ranges of `units` with at most about `terms_per_launch`
// terms each; a block processes `units_per_block` of them at a time.
template <typename Start>
void in_launches(std::int64_t units, std::int64_t terms_per_unit, std::int64_t units_per_block,
                 std::int64_t terms_per_launch, Start start) {
  auto step = terms_per_launch / (terms_per_unit > 0 ? terms_per_unit : 1);
  if (step < units_per_block) step = units_per_block;
  for (std::int64_t first = 0; first < units; first += step) {
    const auto last = first + step < units ? first + step : units;
    auto blocks = (last - first + units_per_block - 1) / units_per_block;
    if (blocks > kRecords) blocks = kRecords;
    start(first, last, dim3(static_cast<unsigned>(blocks)));
  }
}

// Convolution: one thread per element, or one block per element of the weights' gradient, whose
// sums run over all images and pixels.
__device__ inline Sum conv2d_forward(const Conv2dCheck& what, std::int64_t index) {
  const auto& p = what.problem;
  const auto ow = index % p.out_size[1], oh = index / p.out_size[1] % p.out_size[0];
  const auto plane = index / (p.out_size[1] * p.out_size[0]);
  const auto oc = plane % p.out_channels, n = plane / p.out_channels;
  const auto ins = p.in_channels / p.groups, outs = p.out_channels / p.groups;
  const auto taps = p.kernel[0] * p.kernel[1], pixels = p.in_size[0] * p.in_size[1];
  const float* src = what.src + (n * p.in_channels + oc / outs * ins) * pixels;
  const float* weights = what.weights + oc * ins * taps;
  Sum sum{0.0, 0.0};
  for (std::int64_t kh = 0; kh < p.kernel[0]; ++kh) {
    const auto ih = oh * p.stride[0] + kh * p.dilation[0] - p.pad_before[0];
    if (ih < 0 || ih >= p.in_size[0]) continue;
    for (std::int64_t kw = 0; kw < p.kernel[1]; ++kw) {
      const auto iw = ow * p.stride[1] + kw * p.dilation[1] - p.pad_before[1];
      if (iw < 0 || iw >= p.in_size[1]) continue;
      const float* x = src + ih * p.in_size[1] + iw;
      const float* w = weights + kh * p.kernel[1] + kw;
      for (std::int64_t c = 0; c < ins; ++c) {
        sum.add(static_cast<double>(x[c * pixels]) * static_cast<double>(w[c * taps]));
      }
    }
  }
  if (what.fused) sum.add(static_cast<double>(what.bias[oc]));
  return sum;
}

__device__ inline Sum conv2d_backward_data(const Conv2dCheck& what, std::int64_t index) {
  const auto& p = what.problem;
  const auto iw = index % p.in_size[1], ih = index / p.in_size[1] % p.in_size[0];
  const auto plane = index / (p.in_size[1] * p.in_size[0]);
  const auto ic = plane % p.in_channels, n = plane / p.in_channels;
  const auto ins = p.in_channels / p.groups, outs = p.out_channels / p.groups;
  const auto taps = p.kernel[0] * p.kernel[1], pixels = p.out_size[0] * p.out_size[1];
  const auto first = ic / ins * outs;  // output channel of the group
  const float* dst = what.dst + (n * p.out_channels + first) * pixels;
  const float* weights = what.weights + (first * ins + ic % ins) * taps;
  Sum sum{0.0, 0.0};
  for (std::int64_t kh = 0; kh < p.kernel[0]; ++kh) {
    const auto row = ih + p.pad_before[0] - kh * p.dilation[0], oh = row / p.stride[0];
    if (row < 0 || row % p.stride[0] != 0 || oh >= p.out_size[0]) continue;
    for (std::int64_t kw = 0; kw < p.kernel[1]; ++kw) {
      const auto column = iw + p.pad_before[1] - kw * p.dilation[1], ow = column / p.stride[1];
      if (column < 0 || column % p.stride[1] != 0 || ow >= p.out_size[1]) continue;
      const float* y = dst + oh * p.out_size[1] + ow;
      const float* w = weights + kh * p.kernel[1] + kw;
      for (std::int64_t o = 0; o < outs; ++o) {
        sum.add(static_cast<double>(y[o * pixels]) * static_cast<double>(w[o * ins * taps]));
      }
    }
  }
  return sum;
}

// A thread's share of the sum: every blockDim.x-th pixel of the result, without a division per
// pixel.
__device__ inline Sum conv2d_backward_weights(const Conv2dCheck& what, std::int64_t index) {
  const auto& p = what.problem;
  const auto ins = p.in_channels / p.groups, outs = p.out_channels / p.groups;
  const auto kw = index % p.kernel[1], kh = index / p.kernel[1] % p.kernel[0];
  const auto filter = index / (p.kernel[1] * p.kernel[0]);
  const auto oc = filter / ins, ic = oc / outs * ins + filter % ins;
  const auto down = kh * p.dilation[0] - p.pad_before[0],
             right = kw * p.dilation[1] - p.pad_before[1];
  const auto rows = static_cast<int>(p.out_size[0]), columns = static_cast<int>(p.out_size[1]);
  const int step = static_cast<int>(blockDim.x);
  const int step_n = step / (rows * columns), step_h = step / columns % rows,
            step_w = step % columns;
  int ow = static_cast<int>(threadIdx.x), oh = 0;
  std::int64_t n = 0;
  oh = ow / columns;
  ow -= oh * columns;
  n = oh / rows;
  oh -= static_cast<int>(n) * rows;
  Sum sum{0.0, 0.0};
  while (n < p.batch) {
    const auto ih = oh * p.stride[0] + down, iw = ow * p.stride[1] + right;
    if (ih >= 0 && ih < p.in_size[0] && iw >= 0 && iw < p.in_size[1]) {
      const auto x = what.src[((n * p.in_channels + ic) * p.in_size[0] + ih) * p.in_size[1] + iw];
      const auto y = what.dst[((n * p.out_channels + oc) * rows + oh) * columns + ow];
      sum.add(static_cast<double>(x) * static_cast<double>(y));
    }
    ow += step_w;
    if (ow >= columns) {
      ow -= columns;
      ++oh;
    }
    oh += step_h;
    if (oh >= rows) {
      oh -= rows;
      ++n;
    }
    n += step_n;
  }
  return sum;
}

// Three blocks per multiprocessor: otherwise the compiler uses the registers of one, whose eight
// warps do not hide the latency of loads.
__global__ void __launch_bounds__(kCheckThreads, 3)
    conv2d_check_kernel(Conv2dCheck what, std::int64_t first, std::int64_t last,
                        Deviation* records) {
  auto worst = nothing_compared();
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (auto i = first + static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < last;
       i += step) {
    const auto sum =
        what.pass == Pass::backward_data ? conv2d_backward_data(what, i) : conv2d_forward(what, i);
    worst = both(worst, deviation_of(what.output, i, sum, what.fused));
  }
  record(worst, records);
}

__global__ void conv2d_check_weights_kernel(Conv2dCheck what, std::int64_t first, std::int64_t last,
                                            Deviation* records) {
  auto worst = nothing_compared();
  for (auto i = first + blockIdx.x; i < last; i += gridDim.x) {
    const auto sum = block_sum(conv2d_backward_weights(what, i));
    if (threadIdx.x == 0) worst = both(worst, deviation_of(what.output, i, sum, false));
  }
  record(worst, records);
}

// Matrix products: a block computes a square of the result from strips that it converts to float64
// once; conversions are most of the work if float64 is slow.
inline constexpr int kSide = 16;
static_assert(kSide * kSide == kCheckThreads);

// result[b, i, j] = sum_t left[b, i, t] right[b, t, j] for all passes.
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
    worst = both(worst, deviation_of(what.output, index, sum, what.fused));
  }
  record(worst, records);
}

// Pooling: one thread per element. Backward, a thread gathers from all windows that contain its
// pixel; the first of equal maxima in row-major order gets the gradient.

// The rows (or columns) of a window that are not on padding.
struct Reach {
  std::int64_t first, last;
};

__device__ inline Reach reach(std::int64_t window, std::int64_t stride, std::int64_t pad,
                              std::int64_t kernel, std::int64_t size) {
  const auto start = window * stride - pad, end = start + kernel;
  return {start > 0 ? start : 0, end < size ? end : size};
}

// The windows that hold a row (or column).
__device__ inline Reach holders(std::int64_t at, std::int64_t stride, std::int64_t pad,
                                std::int64_t kernel, std::int64_t windows) {
  const auto before = at + pad - kernel;  // the last position of a window that ends too early
  const auto first = before < 0 ? 0 : before / stride + 1, last = (at + pad) / stride + 1;
  return {first, last < windows ? last : windows};
}

__device__ inline double divisor(const PoolProblem& p, const Reach& rows, const Reach& columns) {
  if (p.mode == PoolMode::avg_include_padding) {
    return static_cast<double>(p.kernel[0] * p.kernel[1]);
  }
  const auto high = rows.last - rows.first, wide = columns.last - columns.first;
  return static_cast<double>((high > 1 ? high : 1) * (wide > 1 ? wide : 1));
}

// The index of a window's maximum in its plane; -1 if the window is only padding.
__device__ inline std::int64_t first_maximum(const float* plane, std::int64_t width,
                                             const Reach& rows, const Reach& columns) {
  std::int64_t found = -1;
  for (auto ih = rows.first; ih < rows.last; ++ih) {
    for (auto iw = columns.first; iw < columns.last; ++iw) {
      const auto at = ih * width + iw;
      if (found < 0 || plane[at] > plane[found]) found = at;
    }
  }
  return found;
}

__device__ inline Deviation pool2d_forward(const Pool2dCheck& what, std::int64_t index) {
  const auto& p = what.problem;
  const auto ow = index % p.out_size[1], oh = index / p.out_size[1] % p.out_size[0];
  const float* plane =
      what.src + index / (p.out_size[1] * p.out_size[0]) * p.in_size[0] * p.in_size[1];
  const auto rows = reach(oh, p.stride[0], p.pad_before[0], p.kernel[0], p.in_size[0]);
  const auto columns = reach(ow, p.stride[1], p.pad_before[1], p.kernel[1], p.in_size[1]);
  if (p.mode == PoolMode::max) {
    // A maximum is one of the inputs: it must be exact.
    const auto at = first_maximum(plane, p.in_size[1], rows, columns);
    const double expected = at < 0 ? -INFINITY : static_cast<double>(plane[at]);
    const double got = load(what.output.data, what.output.type, offset(what.output, index));
    return deviation_of(got, expected, fabs(expected), index);
  }
  Sum sum{0.0, 0.0};
  const double share = 1.0 / divisor(p, rows, columns);
  for (auto ih = rows.first; ih < rows.last; ++ih) {
    for (auto iw = columns.first; iw < columns.last; ++iw) {
      sum.add(static_cast<double>(plane[ih * p.in_size[1] + iw]) * share);
    }
  }
  return deviation_of(what.output, index, sum, false);
}

__device__ inline Deviation pool2d_backward(const Pool2dCheck& what, std::int64_t index) {
  const auto& p = what.problem;
  const auto iw = index % p.in_size[1], ih = index / p.in_size[1] % p.in_size[0];
  const auto plane = index / (p.in_size[1] * p.in_size[0]);
  const auto down = holders(ih, p.stride[0], p.pad_before[0], p.kernel[0], p.out_size[0]);
  const auto right = holders(iw, p.stride[1], p.pad_before[1], p.kernel[1], p.out_size[1]);
  const float* gradient = what.dst + plane * p.out_size[0] * p.out_size[1];
  Sum sum{0.0, 0.0};
  for (auto oh = down.first; oh < down.last; ++oh) {
    const auto rows = reach(oh, p.stride[0], p.pad_before[0], p.kernel[0], p.in_size[0]);
    for (auto ow = right.first; ow < right.last; ++ow) {
      const auto columns = reach(ow, p.stride[1], p.pad_before[1], p.kernel[1], p.in_size[1]);
      const auto given = static_cast<double>(gradient[oh * p.out_size[1] + ow]);
      if (p.mode != PoolMode::max) {
        sum.add(given / divisor(p, rows, columns));
      } else if (first_maximum(what.src + plane * p.in_size[0] * p.in_size[1], p.in_size[1], rows,
                               columns) == ih * p.in_size[1] + iw) {
        sum.add(given);
      }
    }
  }
  return deviation_of(what.output, index, sum, false);
}

__global__ void pool2d_check_kernel(Pool2dCheck what, std::int64_t first, std::int64_t last,
                                    Deviation* records) {
  auto worst = nothing_compared();
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (auto i = first + static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < last;
       i += step) {
    worst = both(worst, what.pass == Pass::backward_data ? pool2d_backward(what, i)
                                                         : pool2d_forward(what, i));
  }
  record(worst, records);
}

}  // namespace pydlbench::cuda::reference

namespace pydlbench::cuda {

using namespace reference;

void check(const Conv2dCheck& what, Deviation* records, CUstream_st* stream,
           std::int64_t terms_per_launch) {
  const auto& p = what.problem;
  const auto ins = p.in_channels / p.groups, outs = p.out_channels / p.groups;
  const auto taps = p.kernel[0] * p.kernel[1];
  clear_records(records, stream);
  if (what.pass == Pass::backward_weights) {
    in_launches(p.out_channels * ins * taps, p.batch * p.out_size[0] * p.out_size[1], 1,
                terms_per_launch, [&](std::int64_t first, std::int64_t last, dim3 blocks) {
                  launch(conv2d_check_weights_kernel, blocks, dim3(kCheckThreads), 0, stream, what,
                         first, last, records);
                });
    return;
  }
  const bool data = what.pass == Pass::backward_data;
  const auto elements = data ? p.batch * p.in_channels * p.in_size[0] * p.in_size[1]
                             : p.batch * p.out_channels * p.out_size[0] * p.out_size[1];
  in_launches(elements, (data ? outs : ins) * taps, kCheckThreads, terms_per_launch,
              [&](std::int64_t first, std::int64_t last, dim3 blocks) {
                launch(conv2d_check_kernel, blocks, dim3(kCheckThreads), 0, stream, what, first,
                       last, records);
              });
}

void check(const GemmCheck& what, Deviation* records, CUstream_st* stream,
           std::int64_t terms_per_launch) {
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

void check(const Pool2dCheck& what, Deviation* records, CUstream_st* stream,
           std::int64_t terms_per_launch) {
  const auto& p = what.problem;
  const bool backward = what.pass == Pass::backward_data;
  const auto pixels = backward ? p.in_size[0] * p.in_size[1] : p.out_size[0] * p.out_size[1];
  const auto window = p.kernel[0] * p.kernel[1];
  // Backward, each pixel of a window searches its maximum.
  const auto terms = backward && p.mode == PoolMode::max ? window * window : window;
  clear_records(records, stream);
  in_launches(p.batch * p.channels * pixels, terms, kCheckThreads, terms_per_launch,
              [&](std::int64_t first, std::int64_t last, dim3 blocks) {
                launch(pool2d_check_kernel, blocks, dim3(kCheckThreads), 0, stream, what, first,
                       last, records);
              });
}

}  // namespace pydlbench::cuda
