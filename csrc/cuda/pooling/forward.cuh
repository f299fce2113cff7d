// Forward pooling: dst = maximum or mean of src over each window, and where the maximum was.
//
// The first maximum of a window, row by row, is the one that counts. Sums are kept in float32.
// Memory-bound: each thread moves 16 bytes of neighbouring channels at a time where the layout has
// them, and taps of neighbouring windows come from the cache.
#pragma once

#include <climits>
#include <string>

#include "cuda/pooling/window.cuh"

namespace pydlbench::cuda::pooling {

// One window per thread, `kLanes` channels of it. Windows of kRows x kColumns taps, or of whatever
// size where they are 0. `dst` may be null where only the argmax is wanted.
//
// A tap in the padding is read from the nearest pixel instead, so that no load waits for a branch.
// That pixel is in the window as well (padding is narrower than a window), so it cannot change a
// maximum; sums and the argmax leave it out.
template <typename T, typename Argmax, Kind kKind, int kLanes, int kRows, int kColumns>
__global__ void __launch_bounds__(kThreads)
    forward_per_thread(Shape s, Places places, const T* __restrict__ src, T* __restrict__ dst,
                       Argmax* __restrict__ argmax) {
  const auto index = thread_index();
  if (index >= places.count) return;
  const auto at = place_of(places, index, kLanes);
  const int rows = kRows > 0 ? kRows : s.kernel_height;
  const int columns = kColumns > 0 ? kColumns : s.kernel_width;
  const int top = at.row * s.stride_height - s.pad_top;
  const int left = at.column * s.stride_width - s.pad_left;
  const T* image = src + at.image * s.in_elements() + at.channel;

  float value[kLanes];
  int where[kLanes];
#pragma unroll
  for (int lane = 0; lane < kLanes; ++lane) {
    value[lane] = kKind == Kind::average ? 0.0f : -INFINITY;
    // The first tap inside: right even where nothing is larger than minus infinity.
    where[lane] = (top < 0 ? -top : 0) * columns + (left < 0 ? -left : 0);
  }
#pragma unroll
  for (int i = 0; i < rows; ++i) {
    const int row = clamped(top + i, s.in_height - 1);
    const bool row_inside = row == top + i;
#pragma unroll
    for (int j = 0; j < columns; ++j) {
      const int column = clamped(left + j, s.in_width - 1);
      const bool is_inside = row_inside && column == left + j;
      const auto taps = load<kLanes>(image + (row * s.in_width + column) * s.channels);
#pragma unroll
      for (int lane = 0; lane < kLanes; ++lane) {
        const float tap = to_float(taps.lane[lane]);
        if (kKind == Kind::average) {
          value[lane] += is_inside ? tap : 0.0f;
        } else if (kKind == Kind::maximum) {
          value[lane] = tap > value[lane] ? tap : value[lane];
        } else if (is_inside && tap > value[lane]) {
          value[lane] = tap;
          where[lane] = i * columns + j;
        }
      }
    }
  }

  if (kKind == Kind::average) {
    const float factor = share(s, top, left);
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) value[lane] *= factor;
  }
  const auto offset =
      at.image * s.out_elements() + (at.row * s.out_width + at.column) * s.channels + at.channel;
  if (kKind != Kind::maximum_and_argmax || dst != nullptr) {
    store(dst + offset, packed<T>(value));
  }
  if (kKind == Kind::maximum_and_argmax) {
    Pack<Argmax, kLanes> found;
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) found.lane[lane] = static_cast<Argmax>(where[lane]);
    store(argmax + offset, found);
  }
}

// One window per warp, for large windows of images with one channel (global pooling in NCHW):
// neighbouring lanes read neighbouring taps.
template <typename T, typename Argmax, Kind kKind>
__global__ void __launch_bounds__(kThreads)
    forward_per_warp(Shape s, Places places, const T* __restrict__ src, T* __restrict__ dst,
                     Argmax* __restrict__ argmax) {
  const auto index = thread_index() / 32;
  if (index >= places.count) return;  // the same for the whole warp
  const auto at = place_of(places, index, 1);
  const int top = at.row * s.stride_height - s.pad_top;
  const int left = at.column * s.stride_width - s.pad_left;
  const int rows = inside(top, s.kernel_height, s.in_height);
  const int columns = inside(left, s.kernel_width, s.in_width);
  const int first_row = top < 0 ? 0 : top, first_column = left < 0 ? 0 : left;
  const T* window = src + at.image * s.in_elements() + first_row * s.in_width + first_column;

  float value = kKind == Kind::average ? 0.0f : -INFINITY;
  int where = INT_MAX;
  const int lane = static_cast<int>(threadIdx.x % 32);
  for (int tap_index = lane; tap_index < rows * columns; tap_index += 32) {
    const int i = tap_index / columns, j = tap_index - i * columns;
    const float tap = to_float(window[i * s.in_width + j]);
    if (kKind == Kind::average) {
      value += tap;
    } else if (where == INT_MAX || tap > value) {
      value = tap;
      where = (first_row - top + i) * s.kernel_width + first_column - left + j;
    }
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, value, distance);
    const int other_where = __shfl_xor_sync(0xffffffffu, where, distance);
    if (kKind == Kind::average) {
      value += other;
    } else if (other > value || (other == value && other_where < where)) {
      value = other;
      where = other_where;
    }
  }

  if (lane != 0) return;
  if (kKind == Kind::average) value *= share(s, top, left);
  const auto offset = at.image * s.out_elements() + at.row * s.out_width + at.column;
  if (kKind != Kind::maximum_and_argmax || dst != nullptr) dst[offset] = from_float<T>(value);
  if (kKind == Kind::maximum_and_argmax) argmax[offset] = static_cast<Argmax>(where);
}

// The kernels of one number of lanes, by the size of the window.
template <typename T, typename Argmax, Kind kKind, int kLanes>
void forward_by_window(const Shape& s, const Places& places, const T* src, T* dst, Argmax* argmax,
                       cudaStream_t stream) {
  auto kernel = &forward_per_thread<T, Argmax, kKind, kLanes, 0, 0>;
  // Unrolled for the windows that networks have most, in the widths that they are best in.
  if constexpr (sizeof(Argmax) == 1 && (kLanes == 1 || kLanes * sizeof(T) == 16)) {
    if (s.kernel_height == 2 && s.kernel_width == 2) {
      kernel = &forward_per_thread<T, Argmax, kKind, kLanes, 2, 2>;
    } else if (s.kernel_height == 3 && s.kernel_width == 3) {
      kernel = &forward_per_thread<T, Argmax, kKind, kLanes, 3, 3>;
    }
  }
  launch(kernel, blocks_for(places.count), dim3(kThreads), 0, stream, s, places, src, dst, argmax);
}

template <typename T, typename Argmax, Kind kKind>
void forward_of_kind(const Pool2dProblem& problem, const Choice& choice, const T* src, T* dst,
                     Argmax* argmax, cudaStream_t stream) {
  const auto s = shape_of(problem, choice.channels_last);
  PYDLBENCH_CHECK(s.channels % choice.lanes == 0, "lanes divide the channels of a pixel");
  const auto at = places(s, s.out_height, s.out_width, choice.lanes);
  if (choice.method == Method::warp) {
    PYDLBENCH_CHECK(s.channels == 1, "a warp pools images of one channel");
    return launch(&forward_per_warp<T, Argmax, kKind>, blocks_for(at.count * 32), dim3(kThreads), 0,
                  stream, s, at, src, dst, argmax);
  }
  if (choice.lanes == 1)
    return forward_by_window<T, Argmax, kKind, 1>(s, at, src, dst, argmax, stream);
  if constexpr (sizeof(Argmax) == 1) {
    constexpr int full = 16 / static_cast<int>(sizeof(T));
    if (choice.lanes == full) {
      return forward_by_window<T, Argmax, kKind, full>(s, at, src, dst, argmax, stream);
    }
    if constexpr (sizeof(T) == 2) {
      if (choice.lanes == 2) {
        return forward_by_window<T, Argmax, kKind, 2>(s, at, src, dst, argmax, stream);
      }
    }
  }
  throw Unsupported("pooling by " + std::to_string(choice.lanes) + " lanes");
}

// Pools `src` into `dst`; with `argmax` (of argmax_type()), writes where the maxima were, and then
// `dst` may be null.
template <typename T>
void forward(const Pool2dProblem& problem, const Choice& choice, const void* src, void* dst,
             void* argmax, cudaStream_t stream) {
  const auto* from = static_cast<const T*>(src);
  auto* to = static_cast<T*>(dst);
  auto* bytes = static_cast<std::uint8_t*>(argmax);
  if (problem.mode != PoolMode::max) {
    forward_of_kind<T, std::uint8_t, Kind::average>(problem, choice, from, to, nullptr, stream);
  } else if (argmax == nullptr) {
    forward_of_kind<T, std::uint8_t, Kind::maximum>(problem, choice, from, to, nullptr, stream);
  } else if (argmax_type(problem) == DataType::int8) {
    forward_of_kind<T, std::uint8_t, Kind::maximum_and_argmax>(problem, choice, from, to, bytes,
                                                               stream);
  } else {
    forward_of_kind<T, std::int32_t, Kind::maximum_and_argmax>(
        problem, choice, from, to, static_cast<std::int32_t*>(argmax), stream);
  }
}

}  // namespace pydlbench::cuda::pooling
