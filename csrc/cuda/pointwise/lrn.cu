// Local response normalisation across channels, Krizhevsky et al. 2012:
//   d[c] = k + alpha / local_size x sum of x[j]^2 over the window around c,   y = x d^-beta,
// and its gradient
//   dx[c] = dy[c] d[c]^-beta - 2 alpha beta / local_size x[c] sum of t[j] over the window,
//   t[j] = dy[j] x[j] d[j]^(-beta - 1).
//
// A block has all channels of a few pixels in shared memory, so that each input is read once. Every
// window is summed anew, which avoids cancellation.
#include <algorithm>

#include "core/error.hpp"
#include "cuda/pointwise/elementwise.cuh"

namespace pydlbench::cuda::pointwise {

namespace {

// Absolute or relative error up to 2^-22, a few roundings of a power.
__device__ __forceinline__ float fast_log2(float x) {
#ifdef __CUDACC__
  return __log2f(x);
#else
  return log2f(x);
#endif
}
// Error up to two roundings.
__device__ __forceinline__ float fast_quotient(float x, float y) {
#ifdef __CUDACC__
  return __fdividef(x, y);
#else
  return x / y;
#endif
}

struct Window {
  int half;              // channels on either side
  float alpha, beta, k;  // alpha is already divided by the window's size

  __device__ __forceinline__ float scale(float squares) const { return k + alpha * squares; }
  // d^-beta. No branches, so that the loads of later channels can start early.
  __device__ __forceinline__ float power(float d) const { return exp2f(-beta * fast_log2(d)); }
};

// A block's pixels in shared memory, in the order of the tensor (NHWC: pixel by pixel; NCHW:
// channel by channel), so that neighbouring threads read neighbouring elements. The last block may
// have fewer pixels.
struct Tile {
  bool channels_last;
  int channels, pixels;  // of a block
  std::int64_t places;   // pixels of all images
  Divider by_row;        // channels in NHWC, pixels of the block in NCHW
  Divider by_pixels;     // of an image

  struct Place {
    int channel, pixel;
  };
  __device__ __forceinline__ Place place(int i) const {
    const int row = static_cast<int>(by_row.quotient(i));
    const int column = i - row * static_cast<int>(by_row.divisor());
    return channels_last ? Place{column, row} : Place{row, column};
  }
  // Distance between consecutive channels of a pixel.
  __device__ __forceinline__ int step() const { return channels_last ? 1 : pixels; }
  __device__ __forceinline__ int elements() const { return channels * pixels; }
  __device__ __forceinline__ bool inside(const Place& at) const {
    return std::int64_t{blockIdx.x} * pixels + at.pixel < places;
  }
  // The element's offset in the tensor.
  __device__ __forceinline__ std::int64_t offset(const Place& at) const {
    const std::int64_t place = std::int64_t{blockIdx.x} * pixels + at.pixel;
    if (channels_last) return place * channels + at.channel;
    const std::int64_t image = by_pixels.quotient(place), size = by_pixels.divisor();
    return (image * channels + at.channel) * size + (place - image * size);
  }
};

// The sum of term(j) over the window around element i of channel `channel`.
template <typename Term>
__device__ __forceinline__ float window_sum(const Tile& tile, int half, int i, int channel,
                                            const Term& term) {
  const int above = tile.channels - 1 - channel, step = tile.step();
  const int low = channel < half ? -channel : -half, high = above < half ? above : half;
  float sum = 0.0f;
  for (int j = low; j <= high; ++j) sum += term(i + j * step);
  return sum;
}

template <typename T>
__global__ void __launch_bounds__(kThreads, kMinBlocks)
    lrn_forward_kernel(const T* __restrict__ src, T* __restrict__ dst, Tile tile, Window window) {
  __shared__ float x[kLrnChannels];
  for (int i = static_cast<int>(threadIdx.x); i < tile.elements(); i += kThreads) {
    const auto at = tile.place(i);
    if (tile.inside(at)) x[i] = to_float(src[tile.offset(at)]);
  }
  __syncthreads();
  const auto square = [&](int j) { return x[j] * x[j]; };
  for (int i = static_cast<int>(threadIdx.x); i < tile.elements(); i += kThreads) {
    const auto at = tile.place(i);
    if (!tile.inside(at)) continue;
    const float squares = window_sum(tile, window.half, i, at.channel, square);
    dst[tile.offset(at)] = from_float<T>(x[i] * window.power(window.scale(squares)));
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads, kMinBlocks)
    lrn_backward_kernel(const T* __restrict__ src, const T* __restrict__ ddst, T* __restrict__ dsrc,
                        Tile tile, Window window) {
  __shared__ float x[kLrnChannels], t[kLrnChannels];
  for (int i = static_cast<int>(threadIdx.x); i < tile.elements(); i += kThreads) {
    const auto at = tile.place(i);
    if (!tile.inside(at)) continue;
    x[i] = to_float(src[tile.offset(at)]);
    t[i] = to_float(ddst[tile.offset(at)]);
  }
  __syncthreads();
  const auto square = [&](int j) { return x[j] * x[j]; };
  // Replace dy by t; dy d^-beta stays in registers, because it is t d / x, and x may be 0.
  constexpr int each = static_cast<int>(kLrnChannels / kThreads);
  float direct[each];
#pragma unroll
  for (int n = 0; n < each; ++n) {
    const int i = n * kThreads + static_cast<int>(threadIdx.x);
    if (i >= tile.elements()) break;
    const auto at = tile.place(i);
    if (!tile.inside(at)) continue;
    const float d = window.scale(window_sum(tile, window.half, i, at.channel, square));
    direct[n] = t[i] * window.power(d);
    t[i] = fast_quotient(direct[n] * x[i], d);
  }
  __syncthreads();
  const auto term = [&](int j) { return t[j]; };
  const float slope = 2.0f * window.alpha * window.beta;
#pragma unroll
  for (int n = 0; n < each; ++n) {
    const int i = n * kThreads + static_cast<int>(threadIdx.x);
    if (i >= tile.elements()) break;
    const auto at = tile.place(i);
    if (!tile.inside(at)) continue;
    const float sum = window_sum(tile, window.half, i, at.channel, term);
    dsrc[tile.offset(at)] = from_float<T>(direct[n] - slope * x[i] * sum);
  }
}

Window window_of(const LrnParameters& p) {
  return {p.local_size / 2, p.alpha / static_cast<float>(p.local_size), p.beta, p.k};
}

Tile tile_of(const Image& image) {
  PYDLBENCH_CHECK(image.channels <= kLrnChannels, "all channels of a pixel fit into shared memory");
  const std::int64_t places = image.batch * image.pixels();
  const std::int64_t pixels = std::min(kLrnChannels / image.channels, places);
  return {image.channels_last,
          static_cast<int>(image.channels),
          static_cast<int>(pixels),
          places,
          Divider(image.channels_last ? image.channels : pixels, kLrnChannels),
          Divider(image.pixels(), places)};
}

dim3 blocks_of(const Tile& tile) {
  return dim3(static_cast<unsigned>((tile.places + tile.pixels - 1) / tile.pixels));
}

}  // namespace

void lrn_forward(DataType type, const Image& image, const LrnParameters& parameters,
                 const void* src, void* dst, CUstream_st* stream) {
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    const auto tile = tile_of(image);
    launch(lrn_forward_kernel<T>, blocks_of(tile), dim3(kThreads), 0, stream,
           static_cast<const T*>(src), static_cast<T*>(dst), tile, window_of(parameters));
  });
}

void lrn_backward(DataType type, const Image& image, const LrnParameters& parameters,
                  const void* src, const void* ddst, void* dsrc, CUstream_st* stream) {
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    const auto tile = tile_of(image);
    launch(lrn_backward_kernel<T>, blocks_of(tile), dim3(kThreads), 0, stream,
           static_cast<const T*>(src), static_cast<const T*>(ddst), static_cast<T*>(dsrc), tile,
           window_of(parameters));
  });
}

}  // namespace pydlbench::cuda::pointwise
