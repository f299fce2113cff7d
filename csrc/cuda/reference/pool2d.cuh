// Every element of a pooling in float64, one thread each. Backward, a thread gathers from all
// windows that hold its pixel; of equal maxima the first one of a window, row by row, gets the
// gradient.
#pragma once

#include <cmath>
#include <cstdint>

#include "cuda/reference/deviation.cuh"

namespace pydlbench::cuda::reference {

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

__device__ inline double divisor(const Pool2dProblem& p, const Reach& rows, const Reach& columns) {
  if (p.mode == PoolMode::avg_include_padding) {
    return static_cast<double>(p.kernel_height * p.kernel_width);
  }
  const auto high = rows.last - rows.first, wide = columns.last - columns.first;
  return static_cast<double>((high > 1 ? high : 1) * (wide > 1 ? wide : 1));
}

// Where the maximum of a window is in its plane; -1 where the window is all padding.
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
  const auto ow = index % p.out_width, oh = index / p.out_width % p.out_height;
  const float* plane = what.src + index / (p.out_width * p.out_height) * p.in_height * p.in_width;
  const auto rows = reach(oh, p.stride_height, p.pad_top, p.kernel_height, p.in_height);
  const auto columns = reach(ow, p.stride_width, p.pad_left, p.kernel_width, p.in_width);
  if (p.mode == PoolMode::max) {
    // A maximum is one of the inputs: it must be exact, and its own size is the scale.
    const auto at = first_maximum(plane, p.in_width, rows, columns);
    const double expected = at < 0 ? -INFINITY : static_cast<double>(plane[at]);
    const double got = load(what.output.data, what.output.type, offset(what.output, index));
    return judge(got, expected, fabs(expected), index);
  }
  Sum sum{0.0, 0.0};
  const double share = 1.0 / divisor(p, rows, columns);
  for (auto ih = rows.first; ih < rows.last; ++ih) {
    for (auto iw = columns.first; iw < columns.last; ++iw) {
      sum.add(static_cast<double>(plane[ih * p.in_width + iw]) * share);
    }
  }
  return judge(what.output, index, sum, false);
}

__device__ inline Deviation pool2d_backward(const Pool2dCheck& what, std::int64_t index) {
  const auto& p = what.problem;
  const auto iw = index % p.in_width, ih = index / p.in_width % p.in_height;
  const auto plane = index / (p.in_width * p.in_height);
  const auto down = holders(ih, p.stride_height, p.pad_top, p.kernel_height, p.out_height);
  const auto right = holders(iw, p.stride_width, p.pad_left, p.kernel_width, p.out_width);
  const float* gradient = what.dst + plane * p.out_height * p.out_width;
  Sum sum{0.0, 0.0};
  for (auto oh = down.first; oh < down.last; ++oh) {
    const auto rows = reach(oh, p.stride_height, p.pad_top, p.kernel_height, p.in_height);
    for (auto ow = right.first; ow < right.last; ++ow) {
      const auto columns = reach(ow, p.stride_width, p.pad_left, p.kernel_width, p.in_width);
      const auto given = static_cast<double>(gradient[oh * p.out_width + ow]);
      if (p.mode != PoolMode::max) {
        sum.add(given / divisor(p, rows, columns));
      } else if (first_maximum(what.src + plane * p.in_height * p.in_width, p.in_width, rows,
                               columns) == ih * p.in_width + iw) {
        sum.add(given);
      }
    }
  }
  return judge(what.output, index, sum, false);
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

inline void launch_check(const Pool2dCheck& what, Deviation* records, cudaStream_t stream,
                         std::int64_t terms_per_launch = kTermsPerLaunch) {
  const auto& p = what.problem;
  const bool backward = what.pass == Pass::backward_data;
  const auto pixels = backward ? p.in_height * p.in_width : p.out_height * p.out_width;
  const auto window = p.kernel_height * p.kernel_width;
  // Backward, the maximum of each window is looked for by each pixel in it.
  const auto terms = backward && p.mode == PoolMode::max ? window * window : window;
  clear_records(records, stream);
  in_launches(p.batch * p.channels * pixels, terms, kCheckThreads, terms_per_launch,
              [&](std::int64_t first, std::int64_t last, dim3 blocks) {
                launch(pool2d_check_kernel, blocks, dim3(kCheckThreads), 0, stream, what, first,
                       last, records);
              });
}

}  // namespace pydlbench::cuda::reference
