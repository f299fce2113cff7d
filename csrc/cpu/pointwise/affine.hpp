// A factor and a summand per channel, in either layout, on this thread's share of the elements.
#pragma once

#include "cpu/pointwise/channel_sums.hpp"

namespace pydlbench::cpu::pointwise {

// NCHW: `apply(first element, count, channel)` for pieces of planes.
template <typename Apply>
void for_planes(const Image& image, Index thread, Index threads, Apply&& apply) {
  // Planes may be fewer than threads, or not shared out evenly: shares are of elements.
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

// Writes `value(channel)` to all places of a tile's array that belong to the channels.
template <typename Value>
void spread(Index channels, Index period, Span of, float* array, Value&& value) {
  for (Index c = of.begin; c < of.end; ++c) {
    const float one = value(c);
    for (Index place = c; place < period; place += channels) array[place] = one;
  }
}

}  // namespace pydlbench::cpu::pointwise
