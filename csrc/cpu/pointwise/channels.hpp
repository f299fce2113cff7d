// Work per channel on all threads: sums, and affine maps with one factor and summand per channel.
#pragma once

#include <cstring>

#include "cpu/pointwise/plan_builder.hpp"
#include "cpu/pointwise/threads.hpp"

namespace pydlbench::cpu::pointwise {

// Reads a bfloat16 or float32 number, according to its size in bytes.
inline float get(const void* tensor, Index index, std::size_t item) {
  std::uint32_t bits = 0;
  const void* from = at(tensor, index, item);
  if (item == 4) {
    std::memcpy(&bits, from, 4);
  } else {
    std::uint16_t upper = 0;
    std::memcpy(&upper, from, 2);
    bits = static_cast<std::uint32_t>(upper) << 16;
  }
  float value = 0.0f;
  std::memcpy(&value, &bits, 4);
  return value;
}
// Writes it, rounded to nearest, ties to even.
inline void put(void* tensor, Index index, std::size_t item, float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, 4);
  if (item == 4) {
    std::memcpy(at(tensor, index, item), &bits, 4);
  } else {
    const auto upper = static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
    std::memcpy(at(tensor, index, item), &upper, 2);
  }
}

// Number of elements in an array of repeated per-channel parameters: of as many pixels as fill a
// few vectors.
inline Index tile_period(Index channels) {
  constexpr Index kEnough = 128, kLong = 256;
  if (channels >= kLong) return channels;
  Index period = channels;
  while (period % kMaxLanes != 0) period += channels;
  return (kEnough + period - 1) / period * period;
}

// Room for `count` floats and a vector, in whole cache lines.
inline Index padded_floats(Index count) { return (count + 2 * kMaxLanes - 1) / 16 * 16; }

// Sums per channel: partial sums of limited length in float32 in the workspace, totals in float64.
class ChannelSums {
 public:
  ChannelSums(const Image& image, int sums)
      : image_(image),
        sums_(sums),
        period_(tile_period(image.channels)),
        threads_(thread_count()),
        length_(image.pixels) {
    // If there are fewer planes than threads, share pieces of planes.
    constexpr Index kMin = 4096, kMax = 65536;
    const Index planes = image.batch * image.channels;
    const Index wanted = (4 * threads_ + planes - 1) / planes;
    length_ = std::min(length_, std::max(kMin, (length_ / wanted + 63) / 64 * 64));
    length_ = std::min(length_, kMax);
    pieces_ = (image.pixels + length_ - 1) / length_;
  }

  std::size_t bytes() const {
    const Index floats = image_.channels_last
                             ? threads_ * (per_thread() + 2 * sums_ * image_.channels)
                             : image_.batch * image_.channels * pieces_ * sums_;
    return static_cast<std::size_t>(padded_floats(floats)) * sizeof(float);
  }

  // NCHW: `sum(first element, count, channel, sums)` for this thread's share. Wait for all threads
  // before reading the sums, also below.
  template <typename Sum>
  void rows(Index thread, Index threads, void* workspace, Sum&& sum) const {
    auto* partial = static_cast<float*>(workspace);
    const Span span = share(image_.batch * image_.channels * pieces_, 1, thread, threads);
    for (Index task = span.begin; task < span.end; ++task) {
      const Index plane = task / pieces_, pixel = task % pieces_ * length_;
      sum(plane * image_.pixels + pixel, std::min(length_, image_.pixels - pixel),
          plane % image_.channels, partial + task * sums_);
    }
  }

  // NHWC: `sum(first element, count, sums by index in the period)`.
  template <typename Sum>
  void tiles(Index thread, Index threads, void* workspace, Sum&& sum) const {
    constexpr Index kPeriods = 128;
    auto* places = static_cast<float*>(workspace) + thread * per_thread();
    auto* totals = totals_of(workspace, thread);
    const Index channels = image_.channels, block = kPeriods * period_;
    for (Index i = 0; i < sums_ * channels; ++i) totals[i] = 0.0;
    const Span span = share(image_.batch * image_.pixels, 1, thread, threads);
    for (Index from = span.begin * channels; from < span.end * channels; from += block) {
      for (Index i = 0; i < sums_ * period_; ++i) places[i] = 0.0f;
      sum(from, std::min(block, span.end * channels - from), places);
      for (int s = 0; s < sums_; ++s) {
        for (Index start = 0; start < period_; start += channels) {
          const float* now = places + s * period_ + start;
          for (Index c = 0; c < channels; ++c) totals[s * channels + c] += double{now[c]};
        }
      }
    }
  }

  double total(Index threads, const void* workspace, Index channel, int sum) const {
    double result = 0.0;
    if (image_.channels_last) {
      for (Index t = 0; t < threads; ++t) {
        result += totals_of(const_cast<void*>(workspace), t)[sum * image_.channels + channel];
      }
      return result;
    }
    const auto* partial = static_cast<const float*>(workspace);
    for (Index n = 0; n < image_.batch; ++n) {
      const Index plane = n * image_.channels + channel;
      for (Index piece = 0; piece < pieces_; ++piece) {
        result += double{partial[(plane * pieces_ + piece) * sums_ + sum]};
      }
    }
    return result;
  }

 private:
  Index per_thread() const { return padded_floats(sums_ * period_); }
  double* totals_of(void* workspace, Index thread) const {
    auto* behind = static_cast<float*>(workspace) + threads_ * per_thread();
    return reinterpret_cast<double*>(behind) + thread * sums_ * image_.channels;
  }

  Image image_;
  int sums_;
  Index period_, threads_, length_, pieces_ = 1;
};

// NCHW: `apply(first element, count, channel)` for pieces of planes.
template <typename Apply>
void for_planes(const Image& image, Index thread, Index threads, Apply&& apply) {
  // Share elements, because planes may be fewer than threads or not a multiple of them.
  const Span span = share(image.elements(), 64, thread, threads);
  for (Index from = span.begin; from < span.end;) {
    const Index plane = from / image.pixels;
    const Index count = std::min(span.end, (plane + 1) * image.pixels) - from;
    apply(from, count, plane % image.channels);
    from += count;
  }
}

// NHWC: the share, in whole pixels.
inline Span pixel_elements(const Image& image, Index thread, Index threads) {
  const Span span = share(image.batch * image.pixels, 16, thread, threads);
  return {span.begin * image.channels, span.end * image.channels};
}

// Writes `value(channel)` to all elements of a tile's array.
template <typename Value>
void spread(Index channels, Index period, Span of, float* array, Value&& value) {
  for (Index c = of.begin; c < of.end; ++c) {
    const float one = value(c);
    for (Index place = c; place < period; place += channels) array[place] = one;
  }
}

}  // namespace pydlbench::cpu::pointwise
