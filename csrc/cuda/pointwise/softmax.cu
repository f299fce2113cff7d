// Softmax over rows with the mean cross-entropy of the labelled classes, and its gradient.
#include "cuda/pointwise/reduce.cuh"

namespace pydlbench::cuda::pointwise {

namespace {

// The largest value so far and the sum of exp(value - largest), in one reading.
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
  // Rescales to the largest value of all, so that sums add up.
  __device__ __forceinline__ void rescale(float to) {
    sum = largest == -INFINITY ? 0.0f : sum * expf(largest - to);
    largest = to;
  }
};

// A warp or a whole block per row.
template <typename T, bool kBlock>
__global__ void __launch_bounds__(kThreads, kLeastBlocks)
    softmax_kernel(const T* __restrict__ src, const std::int32_t* __restrict__ labels,
                   std::int64_t rows, std::int64_t classes, bool aligned, T* __restrict__ dst,
                   float* __restrict__ row_loss) {
  __shared__ float largest[32], sums[1][32];
  constexpr int lanes = kLanes<T>, members = kBlock ? kThreads : 32;
  const int member = static_cast<int>(threadIdx.x) % members;
  const std::int64_t row =
      std::int64_t{blockIdx.x} * (kThreads / members) + static_cast<int>(threadIdx.x) / members;
  if (row >= rows) return;  // a whole warp, or with a block per row nobody
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
  const float scale = 1.0f / total[0];
  T* to = dst + row * classes;
  for (std::int64_t first = std::int64_t{member} * lanes; first < classes;
       first += members * lanes) {
    float values[lanes];
    load_lanes(from, first, classes, aligned, values);
#pragma unroll
    for (int i = 0; i < lanes; ++i) values[i] = expf(values[i] - mine.largest) * scale;
    store_lanes(to, first, classes, aligned, values);
  }
  if (member == 0) {
    row_loss[row] = logf(total[0]) - (to_float(from[labels[row]]) - mine.largest);
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

void softmax_forward(DataType type, bool block_per_row, std::int64_t rows, std::int64_t classes,
                     const void* src, const std::int32_t* labels, void* dst, float* loss,
                     float* row_loss, CUstream_st* stream) {
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    const auto* from = static_cast<const T*>(src);
    auto* to = static_cast<T*>(dst);
    const bool aligned = classes % kLanes<T> == 0 && is_aligned(from) && is_aligned(to);
    constexpr std::int64_t warps = kThreads / 32;
    if (block_per_row) {
      launch(softmax_kernel<T, true>, dim3(static_cast<unsigned>(rows)), dim3(kThreads), 0, stream,
             from, labels, rows, classes, aligned, to, row_loss);
    } else {
      launch(softmax_kernel<T, false>, dim3(static_cast<unsigned>((rows + warps - 1) / warps)),
             dim3(kThreads), 0, stream, from, labels, rows, classes, aligned, to, row_loss);
    }
  });
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
