// Backward pooling: each pixel gathers from the windows that contain it.
//
// From a window of a maximum it takes the gradient if it was the maximum, by the argmax that the
// forward pass stored; from an average its share. Nothing is added across threads, so the result
// does not depend on their order, and every pixel is written once. Sums are kept in float32.
#pragma once

#include <string>

#include "cuda/pooling/window.cuh"

namespace pydlbench::cuda::pooling {

// From a pixel to the first and last window that contain it.
struct Reach {
  pointwise::Divider stride_height, stride_width;
};

// The windows along one axis: `first` may be larger than `last`, which means none.
struct Windows {
  int first, last;
};

__device__ __forceinline__ Windows windows_at(int position, int pad, int kernel,
                                              const pointwise::Divider& stride, int count) {
  const int shifted = position + pad;  // in padded coordinates, where window w starts at w x stride
  const int before = shifted - kernel;
  const int last = static_cast<int>(stride.quotient(shifted));
  return {before < 0 ? 0 : static_cast<int>(stride.quotient(before)) + 1,
          last < count ? last : count - 1};
}

// One pixel per thread, `kLanes` channels of it, which at most kOverlap windows contain along each
// axis, or however many where it is 0.
template <typename T, typename Argmax, Kind kKind, int kLanes, int kOverlap>
__global__ void __launch_bounds__(kThreads)
    backward_per_thread(Shape s, Places places, Reach reach, const T* __restrict__ dst,
                        const Argmax* __restrict__ argmax, T* __restrict__ src) {
  const auto index = thread_index();
  if (index >= places.count) return;
  const auto at = place_of(places, index, kLanes);
  const auto rows =
      windows_at(at.row, s.pad_top, s.kernel_height, reach.stride_height, s.out_height);
  const auto columns =
      windows_at(at.column, s.pad_left, s.kernel_width, reach.stride_width, s.out_width);
  const auto image = at.image * s.out_elements() + at.channel;

  float sum[kLanes] = {};
  const int row_count = kOverlap > 0 ? kOverlap : rows.last - rows.first + 1;
  const int column_count = kOverlap > 0 ? kOverlap : columns.last - columns.first + 1;
#pragma unroll
  for (int i = 0; i < row_count; ++i) {
    const int row = clamped(rows.first + i, s.out_height - 1);
    const bool row_reaches = rows.first + i <= rows.last;
#pragma unroll
    for (int j = 0; j < column_count; ++j) {
      // Beyond the last window another one is read and left out: no load waits for a branch.
      const int column = clamped(columns.first + j, s.out_width - 1);
      const bool reaches = row_reaches && columns.first + j <= columns.last;
      const auto offset = image + (row * s.out_width + column) * s.channels;
      const auto gradient = load<kLanes>(dst + offset);
      const int top = row * s.stride_height - s.pad_top;
      const int left = column * s.stride_width - s.pad_left;
      if (kKind == Kind::average) {
        const float factor = reaches ? share(s, top, left) : 0.0f;
#pragma unroll
        for (int lane = 0; lane < kLanes; ++lane) {
          sum[lane] += factor * to_float(gradient.lane[lane]);
        }
      } else {
        const auto found = load<kLanes>(argmax + offset);
        const int tap = (at.row - top) * s.kernel_width + at.column - left;
#pragma unroll
        for (int lane = 0; lane < kLanes; ++lane) {
          const bool is_maximum = reaches && static_cast<int>(found.lane[lane]) == tap;
          sum[lane] += is_maximum ? to_float(gradient.lane[lane]) : 0.0f;
        }
      }
    }
  }
  store(src + at.image * s.in_elements() + (at.row * s.in_width + at.column) * s.channels +
            at.channel,
        packed<T>(sum));
}

template <typename T, typename Argmax, Kind kKind, int kLanes>
void backward_by_overlap(const Shape& s, const Places& places, const T* dst, const Argmax* argmax,
                         T* src, cudaStream_t stream) {
  auto kernel = &backward_per_thread<T, Argmax, kKind, kLanes, 0>;
  if constexpr (sizeof(Argmax) == 1 && (kLanes == 1 || kLanes * sizeof(T) == 16)) {
    const auto overlap = [](int size, int stride) { return (size + stride - 1) / stride; };
    const int rows = overlap(s.kernel_height, s.stride_height);
    const int columns = overlap(s.kernel_width, s.stride_width);
    const int most = rows > columns ? rows : columns;
    if (most == 1) kernel = &backward_per_thread<T, Argmax, kKind, kLanes, 1>;
    if (most == 2) kernel = &backward_per_thread<T, Argmax, kKind, kLanes, 2>;
    if (most == 3) kernel = &backward_per_thread<T, Argmax, kKind, kLanes, 3>;
  }
  const std::int64_t positions =
      std::int64_t{s.in_height} + s.in_width + s.kernel_height + s.kernel_width;
  const Reach reach{{s.stride_height, positions}, {s.stride_width, positions}};
  launch(kernel, blocks_for(places.count), dim3(kThreads), 0, stream, s, places, reach, dst, argmax,
         src);
}

template <typename T, typename Argmax, Kind kKind>
void backward_of_kind(const Pool2dProblem& problem, const Choice& choice, const T* dst,
                      const Argmax* argmax, T* src, cudaStream_t stream) {
  const auto s = shape_of(problem, choice.channels_last);
  PYDLBENCH_CHECK(s.channels % choice.lanes == 0, "lanes divide the channels of a pixel");
  const auto at = places(s, s.in_height, s.in_width, choice.lanes);
  if (choice.lanes == 1) {
    return backward_by_overlap<T, Argmax, kKind, 1>(s, at, dst, argmax, src, stream);
  }
  if constexpr (sizeof(Argmax) == 1) {
    constexpr int full = 16 / static_cast<int>(sizeof(T));
    if (choice.lanes == full) {
      return backward_by_overlap<T, Argmax, kKind, full>(s, at, dst, argmax, src, stream);
    }
    if constexpr (sizeof(T) == 2) {
      if (choice.lanes == 2) {
        return backward_by_overlap<T, Argmax, kKind, 2>(s, at, dst, argmax, src, stream);
      }
    }
  }
  throw Unsupported("pooling by " + std::to_string(choice.lanes) + " lanes");
}

// The gradient of the source from that of the result; `argmax` is what forward() wrote, and null
// for averages.
template <typename T>
void backward(const Pool2dProblem& problem, const Choice& choice, const void* dst,
              const void* argmax, void* src, cudaStream_t stream) {
  const auto* from = static_cast<const T*>(dst);
  auto* to = static_cast<T*>(src);
  if (problem.mode != PoolMode::max) {
    backward_of_kind<T, std::uint8_t, Kind::average>(problem, choice, from, nullptr, to, stream);
  } else if (argmax_type(problem) == DataType::int8) {
    backward_of_kind<T, std::uint8_t, Kind::maximum_and_argmax>(
        problem, choice, from, static_cast<const std::uint8_t*>(argmax), to, stream);
  } else {
    backward_of_kind<T, std::int32_t, Kind::maximum_and_argmax>(
        problem, choice, from, static_cast<const std::int32_t*>(argmax), to, stream);
  }
}

}  // namespace pydlbench::cuda::pooling
