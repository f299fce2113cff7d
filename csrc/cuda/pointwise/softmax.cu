// Softmax over rows and its logarithm, with the mean cross-entropy if there are labels, and the
// gradients.
#include "cuda/pointwise/reduce.cuh"

namespace pydlbench::cuda::pointwise {

namespace {

// The largest value so far and the sum of exp(value - largest), in one pass.
// (M. Milakov and N. Gimelshein, "Online normalizer calculation for softmax", 2018.)
struct Normaliser {
  float largest = -INFINITY, sum = 0.0f;

  __device__ __forceinline__ void add(float value) {
    if (value > largest) {
      sum = sum * expf(largest - value) + 1.0f;
      largest = value;
    } else {
      sum += expf(value - largest);
    }
  }
  // Rescales to the largest value of all, so that sums can be added.
  __device__ __forceinline__ void rescale(float to) {
    sum = largest == -INFINITY ? 0.0f : sum * expf(largest - to);
    largest = to;
  }
};

// A warp or a block per row. `logarithm`: compute log-probabilities. Without labels, no loss.
template <typename T, bool kBlock>
__global__ void __launch_bounds__(kThreads, kMinBlocks)
    softmax_kernel(const T* __restrict__ src, const std::int32_t* __restrict__ labels,
                   std::int64_t rows, std::int64_t classes, bool aligned, bool logarithm,
                   T* __restrict__ dst, float* __restrict__ row_loss) {
  __shared__ float largest[32], sums[1][32];
  constexpr int lanes = kLanes<T>, members = kBlock ? kThreads : 32;
  const int member = static_cast<int>(threadIdx.x) % members;
  const std::int64_t row =
      std::int64_t{blockIdx.x} * (kThreads / members) + static_cast<int>(threadIdx.x) / members;
  if (row >= rows) return;  // a whole warp, or no thread with a block per row
  const T* from = src + row * classes;
  Normaliser mine;
  for (std::int64_t first = std::int64_t{member} * lanes; first < classes;
       first += members * lanes) {
    float values[lanes];
    load_lanes(from, first, classes, aligned, values);
#pragma unroll
    for (int i = 0; i < lanes; ++i) {
      if (first + i < classes) mine.add(values[i]);
    }
  }
  float total[1];
  if constexpr (kBlock) {
    mine.rescale(block_max(mine.largest, largest));
    total[0] = mine.sum;
    block_sum(total, sums);
  } else {
    mine.rescale(warp_max(mine.largest));
    total[0] = warp_sum(mine.sum);
  }
  const float scale = 1.0f / total[0], above = logarithm ? logf(total[0]) : 0.0f;
  T* to = dst + row * classes;
  for (std::int64_t first = std::int64_t{member} * lanes; first < classes;
       first += members * lanes) {
    float values[lanes];
    load_lanes(from, first, classes, aligned, values);
#pragma unroll
    for (int i = 0; i < lanes; ++i) {
      const float distance = values[i] - mine.largest;
      values[i] = logarithm ? distance - above : expf(distance) * scale;
    }
    store_lanes(to, first, classes, aligned, values);
  }
  if (labels != nullptr && member == 0) {
    row_loss[row] = logf(total[0]) - (to_float(from[labels[row]]) - mine.largest);
  }
}

// result (dy - sum(dy result)) along a row; for logarithms dy - exp(result) sum(dy).
template <typename T, bool kBlock>
__global__ void __launch_bounds__(kThreads, kMinBlocks)
    row_gradient_kernel(const T* __restrict__ result, const T* __restrict__ ddst, std::int64_t rows,
                        std::int64_t width, bool aligned, bool logarithm, T* __restrict__ dsrc) {
  __shared__ float sums[1][32];
  constexpr int lanes = kLanes<T>, members = kBlock ? kThreads : 32;
  const int member = static_cast<int>(threadIdx.x) % members;
  const std::int64_t row =
      std::int64_t{blockIdx.x} * (kThreads / members) + static_cast<int>(threadIdx.x) / members;
  if (row >= rows) return;  // a whole warp, or no thread with a block per row
  const T *y = result + row * width, *dy = ddst + row * width;
  float total[1] = {0.0f};
  for (std::int64_t first = std::int64_t{member} * lanes; first < width; first += members * lanes) {
    float values[lanes], given[lanes];
    load_lanes(y, first, width, aligned, values);
    load_lanes(dy, first, width, aligned, given);
#pragma unroll
    for (int i = 0; i < lanes; ++i) {
      if (first + i < width) total[0] += logarithm ? given[i] : given[i] * values[i];
    }
  }
  if constexpr (kBlock) {
    block_sum(total, sums);
  } else {
    total[0] = warp_sum(total[0]);
  }
  T* dx = dsrc + row * width;
  for (std::int64_t first = std::int64_t{member} * lanes; first < width; first += members * lanes) {
    float values[lanes], given[lanes];
    load_lanes(y, first, width, aligned, values);
    load_lanes(dy, first, width, aligned, given);
#pragma unroll
    for (int i = 0; i < lanes; ++i) {
      values[i] =
          logarithm ? given[i] - expf(values[i]) * total[0] : values[i] * (given[i] - total[0]);
    }
    store_lanes(dx, first, width, aligned, values);
  }
}

// (probability - 1 for the labelled class) / rows.
struct CrossEntropyGradient {
  static constexpr int kInputs = 1, kOutputs = 1;
  Divider by_classes;
  std::int64_t rows;
  const std::int32_t* labels;
  float scale;
  template <int n>
  __device__ __forceinline__ void operator()(std::int64_t first, const float (&in)[1][n],
                                             float (&out)[1][n]) const {
    std::int64_t row = by_classes.quotient(first);
    std::int64_t column = first - row * by_classes.divisor();
    std::int64_t label = labels[row];
#pragma unroll
    for (int i = 0; i < n; ++i) {
      out[0][i] = (in[0][i] - (column == label ? 1.0f : 0.0f)) * scale;
      if (++column == by_classes.divisor()) {
        column = 0;
        label = ++row < rows ? labels[row] : -1;
      }
    }
  }
};

}  // namespace

namespace {

void launch_softmax(DataType type, bool block_per_row, bool logarithm, std::int64_t rows,
                    std::int64_t classes, const void* src, const std::int32_t* labels, void* dst,
                    float* row_loss, CUstream_st* stream) {
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    const auto* from = static_cast<const T*>(src);
    auto* to = static_cast<T*>(dst);
    const bool aligned = classes % kLanes<T> == 0 && is_aligned(from) && is_aligned(to);
    constexpr std::int64_t warps = kThreads / 32;
    if (block_per_row) {
      launch(softmax_kernel<T, true>, dim3(static_cast<unsigned>(rows)), dim3(kThreads), 0, stream,
             from, labels, rows, classes, aligned, logarithm, to, row_loss);
    } else {
      launch(softmax_kernel<T, false>, dim3(static_cast<unsigned>((rows + warps - 1) / warps)),
             dim3(kThreads), 0, stream, from, labels, rows, classes, aligned, logarithm, to,
             row_loss);
    }
  });
}

}  // namespace

void row_softmax_forward(DataType type, bool block_per_row, bool logarithm, std::int64_t rows,
                         std::int64_t width, const void* src, void* dst, CUstream_st* stream) {
  launch_softmax(type, block_per_row, logarithm, rows, width, src, nullptr, dst, nullptr, stream);
}

void row_softmax_backward(DataType type, bool block_per_row, bool logarithm, std::int64_t rows,
                          std::int64_t width, const void* result, const void* ddst, void* dsrc,
                          CUstream_st* stream) {
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    const auto *y = static_cast<const T*>(result), *dy = static_cast<const T*>(ddst);
    auto* dx = static_cast<T*>(dsrc);
    const bool aligned =
        width % kLanes<T> == 0 && is_aligned(y) && is_aligned(dy) && is_aligned(dx);
    constexpr std::int64_t warps = kThreads / 32;
    if (block_per_row) {
      launch(row_gradient_kernel<T, true>, dim3(static_cast<unsigned>(rows)), dim3(kThreads), 0,
             stream, y, dy, rows, width, aligned, logarithm, dx);
    } else {
      launch(row_gradient_kernel<T, false>, dim3(static_cast<unsigned>((rows + warps - 1) / warps)),
             dim3(kThreads), 0, stream, y, dy, rows, width, aligned, logarithm, dx);
    }
  });
}

void softmax_forward(DataType type, bool block_per_row, std::int64_t rows, std::int64_t classes,
                     const void* src, const std::int32_t* labels, void* dst, float* loss,
                     float* row_loss, CUstream_st* stream) {
  launch_softmax(type, block_per_row, false, rows, classes, src, labels, dst, row_loss, stream);
  launch(total_kernel<float>, dim3(1), dim3(kThreads), 0, stream,
         static_cast<const float*>(row_loss), rows, 1.0f / static_cast<float>(rows), loss);
}

void softmax_backward(DataType type, const Tiling& tiling, std::int64_t rows, std::int64_t classes,
                      const void* probabilities, const std::int32_t* labels, void* dsrc,
                      CUstream_st* stream) {
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    const CrossEntropyGradient op{Divider(classes, rows * classes), rows, labels,
                                  1.0f / static_cast<float>(rows)};
    launch_elementwise<T>(op, {{static_cast<const T*>(probabilities)}, {static_cast<T*>(dsrc)}},
                          rows * classes, tiling, stream);
  });
}

}  // namespace pydlbench::cuda::pointwise
