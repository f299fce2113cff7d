// Local response normalisation across channels, Krizhevsky et al. 2012:
//   d[c] = k + alpha / local_size x sum of x[j]^2 over the window around c,   y = x d^-beta,
// and its gradient
//   dx[c] = dy[c] d[c]^-beta - 2 alpha beta / local_size x[c] sum of t[j] over the window,
//   t[j] = dy[j] x[j] d[j]^(-beta - 1).
#include "cuda/pointwise/elementwise.cuh"

namespace pydlbench::cuda::pointwise {

// Off by at most 2^-22, beside or of the result: a few roundings of a power.
__device__ __forceinline__ float fast_log2(float x) {
#ifdef __CUDACC__
  return __log2f(x);
#else
  return log2f(x);
#endif
}
// Off by two roundings at most.
__device__ __forceinline__ float fast_quotient(float x, float y) {
#ifdef __CUDACC__
  return __fdividef(x, y);
#else
  return x / y;
#endif
}

struct Window {
  int half;              // channels on either side
  float alpha, beta, k;  // alpha is divided by the window's size already

  __device__ __forceinline__ float scale(float squares) const { return k + alpha * squares; }
  // d^-beta. No branches, so that the loads of later channels can start meanwhile.
  __device__ __forceinline__ float power(float d) const { return exp2f(-beta * fast_log2(d)); }
};

// A thread per pixel and `chunk` channels. The window moves through registers: each input is read
// once per chunk, and the sums are taken afresh, so that nothing large cancels.
template <typename T, int kSize>
__global__ void __launch_bounds__(kThreads, kLeastBlocks)
    lrn_forward_registers_kernel(const T* __restrict__ src, T* __restrict__ dst,
                                 std::int64_t places, std::int64_t channels, std::int64_t chunk,
                                 Divider by_pixels, Window window) {
  constexpr int half = kSize / 2;
  const std::int64_t place = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (place >= places) return;
  const std::int64_t pixels = by_pixels.divisor(), image = by_pixels.quotient(place);
  const std::int64_t base = image * channels * pixels + (place - image * pixels);
  const std::int64_t from = blockIdx.y * chunk;
  const std::int64_t to = from + chunk < channels ? from + chunk : channels;
  float x[kSize];
#pragma unroll
  for (int i = 0; i < kSize - 1; ++i) {
    const std::int64_t c = from - half + i;
    x[i + 1] = c >= 0 && c < channels ? to_float(src[base + c * pixels]) : 0.0f;
  }
#pragma unroll kSize
  for (std::int64_t c = from; c < to; ++c) {
#pragma unroll
    for (int i = 0; i + 1 < kSize; ++i) x[i] = x[i + 1];
    x[kSize - 1] = c + half < channels ? to_float(src[base + (c + half) * pixels]) : 0.0f;
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < kSize; ++i) squares += x[i] * x[i];
    dst[base + c * pixels] = from_float<T>(x[half] * window.power(window.scale(squares)));
  }
}

template <typename T, int kSize>
__global__ void __launch_bounds__(kThreads, kLeastBlocks)
    lrn_backward_registers_kernel(const T* __restrict__ src, const T* __restrict__ ddst,
                                  T* __restrict__ dsrc, std::int64_t places, std::int64_t channels,
                                  std::int64_t chunk, Divider by_pixels, Window window) {
  constexpr int half = kSize / 2;
  const std::int64_t place = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (place >= places) return;
  const std::int64_t pixels = by_pixels.divisor(), image = by_pixels.quotient(place);
  const std::int64_t base = image * channels * pixels + (place - image * pixels);
  const std::int64_t from = blockIdx.y * chunk;
  const std::int64_t to = from + chunk < channels ? from + chunk : channels;
  // Behind the newest input e: x[i] is at e - kSize + 1 + i, t[i] at e - half - kSize + 1 + i,
  // direct[i] (dy d^-beta) at e - kSize + 1 + i; the output is at e - kSize + 1.
  float x[kSize], t[kSize], direct[half + 1];
#pragma unroll
  for (int i = 0; i < kSize; ++i) x[i] = t[i] = 0.0f;
#pragma unroll
  for (int i = 0; i <= half; ++i) direct[i] = 0.0f;
  const float slope = 2.0f * window.alpha * window.beta;
#pragma unroll 2
  for (std::int64_t e = from - 2 * half; e < to + 2 * half; ++e) {
#pragma unroll
    for (int i = 0; i + 1 < kSize; ++i) x[i] = x[i + 1], t[i] = t[i + 1];
#pragma unroll
    for (int i = 0; i < half; ++i) direct[i] = direct[i + 1];
    x[kSize - 1] = e >= 0 && e < channels ? to_float(src[base + e * pixels]) : 0.0f;
    const std::int64_t middle = e - half;
    const bool inside = middle >= 0 && middle < channels;
    const float dy = inside ? to_float(ddst[base + middle * pixels]) : 0.0f;
    float squares = 0.0f, sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kSize; ++i) squares += x[i] * x[i];
    const float d = window.scale(squares);
    direct[half] = dy * window.power(d);
    t[kSize - 1] = inside ? fast_quotient(direct[half] * x[half], d) : 0.0f;
#pragma unroll
    for (int i = 0; i < kSize; ++i) sum += t[i];
    const std::int64_t c = e - 2 * half;
    if (c >= from) dsrc[base + c * pixels] = from_float<T>(direct[0] - slope * x[0] * sum);
  }
}

// Whole pixels of NHWC in shared memory: each input is read once, in vectors where it can be.
inline constexpr std::int64_t kLrnTile = kLrnSharedChannels;

template <typename T>
__device__ __forceinline__ void load_tile(const T* from, std::int64_t start, int count,
                                          std::int64_t elements, float* shared) {
  constexpr int lanes = kLanes<T>;
  const bool aligned = is_aligned(from + start);
  for (int i = static_cast<int>(threadIdx.x) * lanes; i < count; i += kThreads * lanes) {
    float values[lanes];
    load_lanes(from, start + i, elements, aligned, values);
#pragma unroll
    for (int lane = 0; lane < lanes; ++lane) {
      if (i + lane < count) shared[i + lane] = values[lane];
    }
  }
}

__device__ __forceinline__ float window_squares(const float* x, int i, int channel, int channels,
                                                int half) {
  const int low = channel < half ? -channel : -half;
  const int high = channels - 1 - channel < half ? channels - 1 - channel : half;
  float sum = 0.0f;
  for (int j = low; j <= high; ++j) sum += x[i + j] * x[i + j];
  return sum;
}

template <typename T>
__global__ void __launch_bounds__(kThreads, kLeastBlocks)
    lrn_forward_shared_kernel(const T* __restrict__ src, T* __restrict__ dst, std::int64_t elements,
                              std::int64_t pixels_per_block, Divider by_channels, Window window) {
  __shared__ float x[kLrnTile];
  const int channels = static_cast<int>(by_channels.divisor());
  const std::int64_t tile = pixels_per_block * channels, start = blockIdx.x * tile;
  const int count = static_cast<int>(elements - start < tile ? elements - start : tile);
  load_tile(src, start, count, elements, x);
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    const int channel = static_cast<int>(by_channels.remainder(i));
    const float squares = window_squares(x, i, channel, channels, window.half);
    dst[start + i] = from_float<T>(x[i] * window.power(window.scale(squares)));
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads, kLeastBlocks)
    lrn_backward_shared_kernel(const T* __restrict__ src, const T* __restrict__ ddst,
                               T* __restrict__ dsrc, std::int64_t elements,
                               std::int64_t pixels_per_block, Divider by_channels, Window window) {
  __shared__ float x[kLrnTile], t[kLrnTile];
  const int channels = static_cast<int>(by_channels.divisor());
  const std::int64_t tile = pixels_per_block * channels, start = blockIdx.x * tile;
  const int count = static_cast<int>(elements - start < tile ? elements - start : tile);
  load_tile(src, start, count, elements, x);
  load_tile(ddst, start, count, elements, t);
  __syncthreads();
  // dy becomes t in place; dy d^-beta is t d / x, but x may be 0: it stays in registers.
  constexpr int each = static_cast<int>(kLrnTile / kThreads);
  float direct[each];
#pragma unroll
  for (int n = 0; n < each; ++n) {
    const int i = n * kThreads + static_cast<int>(threadIdx.x);
    if (i >= count) break;
    const int channel = static_cast<int>(by_channels.remainder(i));
    const float d = window.scale(window_squares(x, i, channel, channels, window.half));
    direct[n] = t[i] * window.power(d);
    t[i] = fast_quotient(direct[n] * x[i], d);
  }
  __syncthreads();
  const float slope = 2.0f * window.alpha * window.beta;
#pragma unroll
  for (int n = 0; n < each; ++n) {
    const int i = n * kThreads + static_cast<int>(threadIdx.x);
    if (i >= count) break;
    const int channel = static_cast<int>(by_channels.remainder(i));
    const int low = channel < window.half ? -channel : -window.half;
    const int above = channels - 1 - channel, high = above < window.half ? above : window.half;
    float sum = 0.0f;
    for (int j = low; j <= high; ++j) sum += t[i + j];
    dsrc[start + i] = from_float<T>(direct[n] - slope * x[i] * sum);
  }
}

// An element per thread, for any layout and size; with ddst the gradient.
template <typename T>
__global__ void __launch_bounds__(kThreads, kLeastBlocks)
    lrn_elements_kernel(const T* __restrict__ src, const T* __restrict__ ddst, T* __restrict__ to,
                        std::int64_t elements, std::int64_t stride, ChannelMap map, Window window) {
  const std::int64_t channels = map.channels, half = window.half;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x; i < elements;
       i += std::int64_t{gridDim.x} * kThreads) {
    const std::int64_t channel = map.by_channels.remainder(map.by_inner.quotient(i));
    const std::int64_t base = i - channel * stride;
    const auto squares = [&](std::int64_t middle) {
      const std::int64_t last = middle + half < channels ? middle + half : channels - 1;
      float sum = 0.0f;
      for (std::int64_t j = middle < half ? 0 : middle - half; j <= last; ++j) {
        const float x = to_float(src[base + j * stride]);
        sum += x * x;
      }
      return sum;
    };
    const float x = to_float(src[i]), power = window.power(window.scale(squares(channel)));
    if (ddst == nullptr) {
      to[i] = from_float<T>(x * power);
      continue;
    }
    const std::int64_t last = channel + half < channels ? channel + half : channels - 1;
    float sum = 0.0f;
    for (std::int64_t j = channel < half ? 0 : channel - half; j <= last; ++j) {
      const float d = window.scale(squares(j));
      const std::int64_t at = base + j * stride;
      const float product = to_float(ddst[at]) * to_float(src[at]);
      sum += fast_quotient(product * window.power(d), d);
    }
    const float slope = 2.0f * window.alpha * window.beta;
    to[i] = from_float<T>(to_float(ddst[i]) * power - slope * x * sum);
  }
}

namespace {

template <typename T>
struct Tensors {
  const T *src, *ddst;
  T* to;
};

template <typename T, int kSize>
void launch_registers(bool forward, std::int64_t chunk, const Image& image, const Window& window,
                      const Tensors<T>& t, CUstream_st* stream) {
  const std::int64_t places = image.batch * image.pixels();
  const std::int64_t chunks = (image.channels + chunk - 1) / chunk;
  const dim3 grid(static_cast<unsigned>((places + kThreads - 1) / kThreads),
                  static_cast<unsigned>(chunks));
  const Divider by_pixels(image.pixels(), places);
  if (forward) {
    launch(lrn_forward_registers_kernel<T, kSize>, grid, dim3(kThreads), 0, stream, t.src, t.to,
           places, image.channels, chunk, by_pixels, window);
  } else {
    launch(lrn_backward_registers_kernel<T, kSize>, grid, dim3(kThreads), 0, stream, t.src, t.ddst,
           t.to, places, image.channels, chunk, by_pixels, window);
  }
}

template <typename T>
void launch_lrn(bool forward, LrnKernel kernel, std::int64_t chunk, const Image& image,
                const LrnParameters& p, const Tensors<T>& t, CUstream_st* stream) {
  const Window window{p.local_size / 2, p.alpha / static_cast<float>(p.local_size), p.beta, p.k};
  if (kernel == LrnKernel::registers) {
    PYDLBENCH_CHECK(!image.channels_last && lrn_in_registers(p.local_size),
                    "windows are kept in registers for NCHW and certain sizes");
    switch (p.local_size) {
      case 3:
        return launch_registers<T, 3>(forward, chunk, image, window, t, stream);
      case 5:
        return launch_registers<T, 5>(forward, chunk, image, window, t, stream);
      case 9:
        return launch_registers<T, 9>(forward, chunk, image, window, t, stream);
      default:
        return launch_registers<T, 11>(forward, chunk, image, window, t, stream);
    }
  }
  if (kernel == LrnKernel::shared) {
    PYDLBENCH_CHECK(image.channels_last && image.channels <= kLrnSharedChannels,
                    "pixels are kept in shared memory for NHWC and few channels");
    const std::int64_t places = image.batch * image.pixels();
    const std::int64_t per_block = std::max<std::int64_t>(1, kLrnTile / image.channels);
    const dim3 grid(static_cast<unsigned>((places + per_block - 1) / per_block));
    const Divider by_channels(image.channels, kLrnSharedChannels);
    if (forward) {
      launch(lrn_forward_shared_kernel<T>, grid, dim3(kThreads), 0, stream, t.src, t.to,
             image.elements(), per_block, by_channels, window);
    } else {
      launch(lrn_backward_shared_kernel<T>, grid, dim3(kThreads), 0, stream, t.src, t.ddst, t.to,
             image.elements(), per_block, by_channels, window);
    }
    return;
  }
  const auto blocks = (image.elements() + kThreads - 1) / kThreads;
  const std::int64_t stride = image.channels_last ? 1 : image.pixels();
  const auto map = channel_map(image);
  launch(lrn_elements_kernel<T>, dim3(static_cast<unsigned>(std::min(blocks, kMostBlocks))),
         dim3(kThreads), 0, stream, t.src, forward ? nullptr : t.ddst, t.to, image.elements(),
         stride, map, window);
}

}  // namespace

void lrn_forward(DataType type, LrnKernel kernel, std::int64_t chunk, const Image& image,
                 const LrnParameters& parameters, const void* src, void* dst, CUstream_st* stream) {
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    launch_lrn<T>(true, kernel, chunk, image, parameters,
                  {static_cast<const T*>(src), nullptr, static_cast<T*>(dst)}, stream);
  });
}

void lrn_backward(DataType type, LrnKernel kernel, std::int64_t chunk, const Image& image,
                  const LrnParameters& parameters, const void* src, const void* ddst, void* dsrc,
                  CUstream_st* stream) {
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    launch_lrn<T>(false, kernel, chunk, image, parameters,
                  {static_cast<const T*>(src), static_cast<const T*>(ddst), static_cast<T*>(dsrc)},
                  stream);
  });
}

}  // namespace pydlbench::cuda::pointwise
