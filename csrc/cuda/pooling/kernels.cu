// Our pooling kernels: windows, vectors of neighbouring channels, forward and backward.
//
// Kernels see images of pixels with channels. In NHWC a pixel has all channels; in NCHW each
// channel is an image with one channel per pixel, so that the same kernels support both. A thread
// processes 16 bytes of a pixel's channels if they are a whole number of vectors, else one channel.
#include "cuda/pooling/kernels.hpp"

#include <cstdint>

#include "core/error.hpp"
#include "cuda/pointwise/elementwise.cuh"

namespace pydlbench::cuda::pooling {

namespace {

struct Shape {
  std::int64_t images;
  int channels, in_height, in_width, out_height, out_width;
  int kernel_height, kernel_width, stride_height, stride_width, pad_top, pad_left;
  bool counts_padding;  // an average divides by the whole window

  constexpr std::int64_t in_elements() const {
    return std::int64_t{in_height} * in_width * channels;
  }
  constexpr std::int64_t out_elements() const {
    return std::int64_t{out_height} * out_width * channels;
  }
};

inline Shape shape_of(const PoolProblem& p, bool channels_last) {
  const std::int64_t channels = channels_last ? p.channels : 1;
  const auto in = p.in_size[0] * p.in_size[1] * channels;
  const auto out = p.out_size[0] * p.out_size[1] * channels;
  // Indices within an image have 32 bits; numbers and offsets of images have 64.
  if (in >= INT32_MAX || out >= INT32_MAX) {
    throw Unsupported("images of 2**31 elements and more");
  }
  const auto narrow = [](std::int64_t size) { return static_cast<int>(size); };
  return {channels_last ? p.batch : p.batch * p.channels,
          narrow(channels),
          narrow(p.in_size[0]),
          narrow(p.in_size[1]),
          narrow(p.out_size[0]),
          narrow(p.out_size[1]),
          narrow(p.kernel[0]),
          narrow(p.kernel[1]),
          narrow(p.stride[0]),
          narrow(p.stride[1]),
          narrow(p.pad_before[0]),
          narrow(p.pad_before[1]),
          p.mode == PoolMode::avg_include_padding};
}

// Conversion of a thread's number to vectors of channels, columns, rows, images.
struct Places {
  pointwise::Divider vectors, columns, rows;
  std::int64_t count;
};

inline Places places(const Shape& shape, int height, int width, int lanes) {
  const std::int64_t vectors = shape.channels / lanes;
  const std::int64_t count = shape.images * height * width * vectors;
  return {{vectors, count}, {width, count}, {height, count}, count};
}

enum class Kind { maximum, average };

using pointwise::kThreads;

// Moved by one access to memory.
template <typename T, int kLanes>
struct alignas(sizeof(T) * kLanes) Pack {
  T lane[kLanes];
};

template <int kLanes, typename T>
__device__ __forceinline__ Pack<T, kLanes> load(const T* from) {
  return *reinterpret_cast<const Pack<T, kLanes>*>(from);
}

template <typename T, int kLanes>
__device__ __forceinline__ void store(T* to, const Pack<T, kLanes>& pack) {
  *reinterpret_cast<Pack<T, kLanes>*>(to) = pack;
}

template <typename T, int kLanes>
__device__ __forceinline__ Pack<T, kLanes> packed(const float (&values)[kLanes]) {
  Pack<T, kLanes> pack;
#pragma unroll
  for (int lane = 0; lane < kLanes; ++lane) pack.lane[lane] = from_float<T>(values[lane]);
  return pack;
}

__device__ __forceinline__ int clamped(int value, int most) {
  return value < 0 ? 0 : value > most ? most : value;
}

// Number of rows (or columns) of a window from `first` on that are inside the image.
__device__ __forceinline__ int inside(int first, int kernel, int size) {
  const int begin = first < 0 ? 0 : first;
  const int end = first + kernel < size ? first + kernel : size;
  return end - begin;
}

// The factor of the sum of the window at (top, left) in an average.
__device__ __forceinline__ float share(const Shape& s, int top, int left) {
  const int count = s.counts_padding ? s.kernel_height * s.kernel_width
                                     : inside(top, s.kernel_height, s.in_height) *
                                           inside(left, s.kernel_width, s.in_width);
  return 1.0f / static_cast<float>(count);
}

// A thread's image, pixel and first channel.
struct Place {
  std::int64_t image;
  int row, column, channel;
};

__device__ __forceinline__ Place place_of(const Places& places, std::int64_t index, int lanes) {
  const auto pixel = places.vectors.quotient(index);
  const auto line = places.columns.quotient(pixel);
  const auto image = places.rows.quotient(line);
  return {image, static_cast<int>(line - image * places.rows.divisor()),
          static_cast<int>(pixel - line * places.columns.divisor()),
          static_cast<int>(index - pixel * places.vectors.divisor()) * lanes};
}

__device__ __forceinline__ std::int64_t thread_index() {
  return std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
}

inline dim3 blocks_for(std::int64_t threads) {
  const auto blocks = (threads + kThreads - 1) / kThreads;
  PYDLBENCH_CHECK(blocks <= INT32_MAX, "a grid of at most 2**31 - 1 blocks");
  return dim3(static_cast<unsigned>(blocks));
}

// Forward: dst = maximum or mean of src over each window, and the position of the first maximum in
// row-major order. Sums are in float32. Memory-bound: each thread moves 16 bytes of neighbouring
// channels at a time if the layout has them, and taps of neighbouring windows come from the cache.
//
// One window per thread, with `kLanes` channels. Windows have kSize x kSize taps, or any size if it
// is 0. `dst` and `argmax` are written if they are not null.
//
// For a tap in the padding, the nearest pixel is read and ignored, so that loads do not depend on a
// branch.
template <typename T, Kind kKind, int kLanes, int kSize>
__global__ void __launch_bounds__(kThreads)
    forward_per_thread(Shape s, Places places, const T* __restrict__ src, T* __restrict__ dst,
                       std::uint8_t* __restrict__ argmax) {
  const auto index = thread_index();
  if (index >= places.count) return;
  const auto at = place_of(places, index, kLanes);
  const int rows = kSize > 0 ? kSize : s.kernel_height;
  const int columns = kSize > 0 ? kSize : s.kernel_width;
  const int top = at.row * s.stride_height - s.pad_top;
  const int left = at.column * s.stride_width - s.pad_left;
  const T* image = src + at.image * s.in_elements() + at.channel;

  float value[kLanes];
  int where[kLanes];
#pragma unroll
  for (int lane = 0; lane < kLanes; ++lane) {
    value[lane] = kKind == Kind::average ? 0.0f : -INFINITY;
    // The first tap inside is correct even if all elements are minus infinity.
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
  if (dst != nullptr) store(dst + offset, packed<T>(value));
  if (kKind == Kind::maximum && argmax != nullptr) {
    Pack<std::uint8_t, kLanes> found;
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
      found.lane[lane] = static_cast<std::uint8_t>(where[lane]);
    }
    store(argmax + offset, found);
  }
}

// Unrolled for the most frequent windows in networks.
template <typename T, Kind kKind, int kLanes>
void forward_by_window(const Shape& s, const T* src, T* dst, std::uint8_t* argmax,
                       cudaStream_t stream) {
  auto kernel = &forward_per_thread<T, kKind, kLanes, 0>;
  if constexpr (kKind == Kind::maximum) {
    if (s.kernel_height == 2 && s.kernel_width == 2) {
      kernel = &forward_per_thread<T, kKind, kLanes, 2>;
    } else if (s.kernel_height == 3 && s.kernel_width == 3) {
      kernel = &forward_per_thread<T, kKind, kLanes, 3>;
    }
  }
  const auto at = places(s, s.out_height, s.out_width, kLanes);
  launch(kernel, blocks_for(at.count), dim3(kThreads), 0, stream, s, at, src, dst, argmax);
}

// Backward: each pixel gathers from the windows that contain it: for maxima the gradient if the
// forward pass's argmax is this pixel, for averages its share. No sum crosses threads, so results
// are deterministic, and every pixel is written once. Sums are in float32.
//
// The first and last window that contain a pixel.
struct Reach {
  pointwise::Divider stride_height, stride_width;
};

// The windows along one axis; none if `first` is larger than `last`.
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

// One pixel per thread, with `kLanes` channels. Along each axis at most kOverlap windows contain
// it, or any number if it is 0.
template <typename T, Kind kKind, int kLanes, int kOverlap>
__global__ void __launch_bounds__(kThreads)
    backward_per_thread(Shape s, Places places, Reach reach, const T* __restrict__ dst,
                        const std::uint8_t* __restrict__ argmax, T* __restrict__ src) {
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
      // Beyond the last window, another one is read and ignored, to avoid a branch.
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

template <typename T, Kind kKind, int kLanes>
void backward_by_overlap(const Shape& s, const T* dst, const std::uint8_t* argmax, T* src,
                         cudaStream_t stream) {
  auto kernel = &backward_per_thread<T, kKind, kLanes, 0>;
  if constexpr (kKind == Kind::maximum) {
    const auto overlap = [](int size, int stride) { return (size + stride - 1) / stride; };
    const int rows = overlap(s.kernel_height, s.stride_height);
    const int columns = overlap(s.kernel_width, s.stride_width);
    const int most = rows > columns ? rows : columns;
    if (most == 1) kernel = &backward_per_thread<T, kKind, kLanes, 1>;
    if (most == 2) kernel = &backward_per_thread<T, kKind, kLanes, 2>;
    if (most == 3) kernel = &backward_per_thread<T, kKind, kLanes, 3>;
  }
  const auto at = places(s, s.in_height, s.in_width, kLanes);
  const std::int64_t positions =
      std::int64_t{s.in_height} + s.in_width + s.kernel_height + s.kernel_width;
  const Reach reach{{s.stride_height, positions}, {s.stride_width, positions}};
  launch(kernel, blocks_for(at.count), dim3(kThreads), 0, stream, s, at, reach, dst, argmax, src);
}

// Calls run(kind, lanes) with compile-time constants: sixteen bytes of channels, or one.
template <typename T, typename Run>
void with_kind_and_lanes(PoolMode mode, int channels, const Run& run) {
  constexpr int full = 16 / static_cast<int>(sizeof(T));
  const auto with_lanes = [&](auto kind) {
    if (channels % full == 0) return run(kind, std::integral_constant<int, full>{});
    run(kind, std::integral_constant<int, 1>{});
  };
  if (mode == PoolMode::max) return with_lanes(std::integral_constant<Kind, Kind::maximum>{});
  with_lanes(std::integral_constant<Kind, Kind::average>{});
}

}  // namespace

void run_forward(const PoolProblem& problem, DataType type, bool channels_last, const void* src,
                 void* dst, std::uint8_t* argmax, CUstream_st* stream) {
  const auto shape = shape_of(problem, channels_last);
  pointwise::with_type(type, [&](auto zero) {
    using T = decltype(zero);
    with_kind_and_lanes<T>(problem.mode, shape.channels, [&](auto kind, auto lanes) {
      forward_by_window<T, kind(), lanes()>(shape, static_cast<const T*>(src), static_cast<T*>(dst),
                                            argmax, stream);
    });
  });
}

void run_backward(const PoolProblem& problem, DataType type, bool channels_last, const void* dst,
                  const std::uint8_t* argmax, void* src, CUstream_st* stream) {
  const auto shape = shape_of(problem, channels_last);
  pointwise::with_type(type, [&](auto zero) {
    using T = decltype(zero);
    with_kind_and_lanes<T>(problem.mode, shape.channels, [&](auto kind, auto lanes) {
      backward_by_overlap<T, kind(), lanes()>(shape, static_cast<const T*>(dst), argmax,
                                              static_cast<T*>(src), stream);
    });
  });
}

}  // namespace pydlbench::cuda::pooling
