// Dropout whose mask is a hash of the element's index: nothing is stored for the backward pass.
#include "cuda/pointwise/elementwise.cuh"

namespace pydlbench::cuda::pointwise {

namespace {

constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15ULL;

// The upper half of SplitMix64 (G. Steele, D. Lea and C. Flood, "Fast splittable pseudorandom
// number generators", 2014); `state` is (index + 1) x kGolden.
__device__ __forceinline__ std::uint32_t hash(std::uint64_t state) {
  std::uint64_t z = state;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return static_cast<std::uint32_t>((z ^ (z >> 31)) >> 32);
}

// The index counts in the order batch, channel, row, column, whatever the order in memory.
struct Dropout {
  static constexpr int kInputs = 1, kOutputs = 1;
  bool channels_last;
  Divider by_channels, by_pixels;
  std::uint64_t limit;  // kept where the hash is below; at most 2**32
  float scale;

  __device__ __forceinline__ float of(float x, std::int64_t index) const {
    const std::uint32_t drawn = hash((static_cast<std::uint64_t>(index) + 1) * kGolden);
    return drawn < limit ? x * scale : 0.0f;
  }

  template <int n>
  __device__ __forceinline__ void operator()(std::int64_t first, const float (&in)[1][n],
                                             float (&out)[1][n]) const {
    if (!channels_last) {
#pragma unroll
      for (int i = 0; i < n; ++i) out[0][i] = of(in[0][i], first + i);
      return;
    }
    const std::int64_t channels = by_channels.divisor(), pixels = by_pixels.divisor();
    const std::int64_t place = by_channels.quotient(first);  // image and pixel
    std::int64_t channel = first - place * channels;
    const std::int64_t image = by_pixels.quotient(place);
    std::int64_t pixel = place - image * pixels;
    std::int64_t base = image * channels * pixels;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      out[0][i] = of(in[0][i], base + channel * pixels + pixel);
      if (++channel == channels) {
        channel = 0;
        if (++pixel == pixels) {
          pixel = 0;
          base += channels * pixels;
        }
      }
    }
  }
};

}  // namespace

void dropout(DataType type, const Tiling& tiling, const Image& image, double keep, const void* src,
             void* dst, CUstream_st* stream) {
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    const Dropout op{image.channels_last, Divider(image.channels, image.elements()),
                     Divider(image.pixels(), image.batch * image.pixels()),
                     static_cast<std::uint64_t>(keep * 4294967296.0),
                     static_cast<float>(1.0 / keep)};
    launch_elementwise<T>(op, {{static_cast<const T*>(src)}, {static_cast<T*>(dst)}},
                          image.elements(), tiling, stream);
  });
}

}  // namespace pydlbench::cuda::pointwise
