// Dropout whose mask is a hash of the element's index: nothing is stored for the backward pass.
#include "cuda/pointwise/elementwise.cuh"

namespace pydlbench::cuda::pointwise {

namespace {

// C. Wellons' 32-bit hash ("Prospecting for hash functions", 2018; "lowbias32") without its last
// step, which does not change the upper half. The memory accesses hide about a dozen integer
// instructions per 16-bit element; a 64-bit hash needs twice as many.
__device__ __forceinline__ std::uint32_t hash(std::uint32_t h) {
  h = (h ^ (h >> 16)) * 0x7FEB352Du;
  return (h ^ (h >> 15)) * 0x846CA68Bu;
}

// The argument of the hash for an element's index.
__device__ __forceinline__ std::uint32_t hash_state(std::uint64_t index) {
  return static_cast<std::uint32_t>(index) ^
         (static_cast<std::uint32_t>(index >> 32) * 0x9E3779B9u + 0x85EBCA6Bu);
}

// Elements are numbered in the order batch, channel, row, column, for any order in memory.
struct Dropout {
  static constexpr int kInputs = 1, kOutputs = 1;
  bool channels_last;
  Divider by_channels, by_pixels;
  std::uint32_t last;  // the largest hash of a kept element
  float scale;

  __device__ __forceinline__ float of(float x, std::uint32_t state) const {
    return hash(state) <= last ? x * scale : 0.0f;
  }

  template <int n>
  __device__ __forceinline__ void operator()(std::int64_t first, const float (&in)[1][n],
                                             float (&out)[1][n]) const {
    if (!channels_last) {
      // `first` is a multiple of n, a power of two: its lowest bits are left for the lane.
      const std::uint32_t state = hash_state(static_cast<std::uint64_t>(first));
#pragma unroll
      for (int i = 0; i < n; ++i) out[0][i] = of(in[0][i], state ^ static_cast<std::uint32_t>(i));
      return;
    }
    const std::int64_t channels = by_channels.divisor(), pixels = by_pixels.divisor();
    const std::int64_t place = by_channels.quotient(first);  // image and pixel
    std::int64_t channel = first - place * channels;
    const std::int64_t image = by_pixels.quotient(place);
    std::int64_t pixel = place - image * pixels;
    std::int64_t base = image * channels * pixels;
    std::int64_t index = base + channel * pixels + pixel;
    if (channels % n == 0) {  // a vector lies within one pixel
#pragma unroll
      for (int i = 0; i < n; ++i) {
        out[0][i] = of(in[0][i], hash_state(static_cast<std::uint64_t>(index + i * pixels)));
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < n; ++i) {
      out[0][i] = of(in[0][i], hash_state(static_cast<std::uint64_t>(index)));
      index += pixels;
      if (++channel == channels) {
        channel = 0;
        if (++pixel == pixels) {
          pixel = 0;
          base += channels * pixels;
        }
        index = base + pixel;
      }
    }
  }
};

}  // namespace

void dropout(DataType type, const Tiling& tiling, const Image& image, double keep, const void* src,
             void* dst, CUstream_st* stream) {
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    // Hashes below `limit` are kept; if it is 0, one hash cannot be excluded, but the factor is 0.
    const auto limit = static_cast<std::uint64_t>(keep * 4294967296.0);
    const Dropout op{image.channels_last, Divider(image.channels, image.elements()),
                     Divider(image.pixels(), image.batch * image.pixels()),
                     limit == 0 ? 0u : static_cast<std::uint32_t>(limit - 1),
                     limit == 0 ? 0.0f : static_cast<float>(1.0 / keep)};
    launch_elementwise<T>(op, {{static_cast<const T*>(src)}, {static_cast<T*>(dst)}},
                          image.elements(), tiling, stream);
  });
}

}  // namespace pydlbench::cuda::pointwise
