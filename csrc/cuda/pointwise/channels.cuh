// The channel of an element, and access to parameters per channel.
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

  // The channel of an element, and the number of following elements that belong to it.
  struct Place {
    int channel;
    std::int64_t left;
  };
  __device__ __forceinline__ Place place(std::int64_t element) const {
    const std::int64_t block = inner == 1 ? element : by_inner.quotient(element);
    return {static_cast<int>(by_channels.remainder(block)), inner - (element - block * inner)};
  }
  __device__ __forceinline__ int after(int channel) const {
    return channel + 1 < channels ? channel + 1 : 0;
  }

  // out[i] = apply(at(channel), i) for the lanes of the vector that starts at element `first`.
  // at(channel) is computed once per vector, or twice if a vector may extend into the next channel.
  template <int kCount, typename At, typename Apply>
  __device__ __forceinline__ void each(std::int64_t first, const At& at, const Apply& apply,
                                       float (&out)[kCount]) const {
    const Place start = place(first);
    auto one = at(start.channel);
    if (inner % kCount == 0) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) out[i] = apply(one, i);
      return;
    }
    if (inner >= kCount) {
      const auto next = at(after(start.channel));
      const int mine = start.left < kCount ? static_cast<int>(start.left) : kCount;
#pragma unroll
      for (int i = 0; i < kCount; ++i) out[i] = i < mine ? apply(one, i) : apply(next, i);
      return;
    }
    std::int64_t left = start.left;
    int channel = start.channel;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      out[i] = apply(one, i);
      if (--left == 0 && i + 1 < kCount) {
        left = inner;
        channel = after(channel);
        one = at(channel);
      }
    }
  }

  // Reads one parameter per lane of the vector that starts at `start`.
  template <int kCount, typename P>
  __device__ __forceinline__ void gather(const P* parameters, const Place& start,
                                         float (&values)[kCount]) const {
    const int channel = start.channel;
    if (inner % kCount == 0) {  // a vector lies within one channel
      const float value = to_float(parameters[channel]);
#pragma unroll
      for (int i = 0; i < kCount; ++i) values[i] = value;
      return;
    }
    if (inner >= kCount) {
      // At most two channels: no branches.
      const int mine = start.left < kCount ? static_cast<int>(start.left) : kCount;
      const float here = to_float(parameters[channel]);
      const float next = to_float(parameters[after(channel)]);
#pragma unroll
      for (int i = 0; i < kCount; ++i) values[i] = i < mine ? here : next;
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
    auto left = start.left;
    int current = channel;
    float value = to_float(parameters[current]);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      values[i] = value;
      if (--left == 0 && i + 1 < kCount) {
        left = inner;
        current = after(current);
        value = to_float(parameters[current]);
      }
    }
  }
};

inline ChannelMap channel_map(const Image& image) {
  return {image.channels_last ? 1 : image.pixels(), image.channels, image.elements()};
}

}  // namespace pydlbench::cuda::pointwise
