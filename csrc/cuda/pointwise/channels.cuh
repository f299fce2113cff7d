// Which channel an element belongs to, and a parameter per channel read accordingly.
#pragma once

#include "cuda/pointwise/launchers.hpp"
#include "cuda/pointwise/vector.cuh"

namespace pydlbench::cuda::pointwise {

// A dense tensor in memory order: blocks of `inner` consecutive elements share a channel. NCHW has
// height x width of them; NHWC has one.
struct ChannelMap {
  std::int64_t inner = 1, channels = 1;
  Divider by_inner, by_channels;

  ChannelMap() = default;
  ChannelMap(std::int64_t inner_, std::int64_t channels_, std::int64_t elements)
      : inner(inner_),
        channels(channels_),
        by_inner(inner_, elements),
        by_channels(channels_, elements) {}

  // One parameter per lane of the vector that starts at element `first`.
  template <int kCount, typename P>
  __device__ __forceinline__ void gather(const P* parameters, std::int64_t first,
                                         float (&values)[kCount]) const {
    const std::int64_t block = by_inner.quotient(first);
    const auto channel = static_cast<int>(by_channels.remainder(block));
    if (inner % kCount == 0) {  // a vector lies within one channel
      const float value = to_float(parameters[channel]);
#pragma unroll
      for (int i = 0; i < kCount; ++i) values[i] = value;
      return;
    }
    if (inner == 1 && channels % kCount == 0 && is_aligned(parameters)) {
      constexpr int n = kLanes<P>;
      if constexpr (kCount % n == 0) {
#pragma unroll
        for (int i = 0; i < kCount; i += n) {
          float part[n];
          unpack<P>(load_whole(parameters, channel + i), part);
#pragma unroll
          for (int j = 0; j < n; ++j) values[i + j] = part[j];
        }
        return;
      }
    }
    auto left = inner - (first - block * inner);  // elements until the channel changes
    int current = channel;
    float value = to_float(parameters[current]);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      values[i] = value;
      if (--left == 0 && i + 1 < kCount) {
        left = inner;
        current = current + 1 == channels ? 0 : current + 1;
        value = to_float(parameters[current]);
      }
    }
  }
};

inline ChannelMap channel_map(const Image& image) {
  return {image.channels_last ? 1 : image.pixels(), image.channels, image.elements()};
}

}  // namespace pydlbench::cuda::pointwise
