// Local response normalisation: windows that slide over channels.
//
// Squares (and, backward, ratios) of all channels are stored in a buffer with zeros on both sides.
// Each window is summed anew, which avoids cancellation.
#pragma once

#include "cpu/pointwise/isa/functions.hpp"

namespace pydlbench::cpu::pointwise::PYDLBENCH_ISA {
namespace {

PYDLBENCH_INLINE void zero(float* to, Index count) {
  for (Index i = 0; i < count; ++i) to[i] = 0.0f;
}

// Sum over the window whose first channel is at `first`, channels `stride` floats apart.
PYDLBENCH_INLINE Floats window_sum(const float* first, Index half, Index stride) {
  Floats sum = load(first);
  for (Index j = 1; j <= 2 * half; ++j) sum += load(first + j * stride);
  return sum;
}

PYDLBENCH_INLINE Floats scale_of(Floats squares, const Window& w) {
  return squares * w.alpha_per_size + w.k;
}
// d^-beta
PYDLBENCH_INLINE Floats power(Floats d, const Window& w) {
  return exponential(logarithm(d) * -w.beta);
}

// Element i of channel c is at c x outer + i: rows of pixels, or a single row of channels. Buffers
// have rows of `width` floats, with `half` rows of zeros on either side.
template <typename T>
void lrn_planes(const void* src, void* dst, Index channels, Index stride, Index count,
                Window window, float* buffer) {
  const auto* from = static_cast<const T*>(src);
  auto* to = static_cast<T*>(dst);
  const Index width = (count + kLanes - 1) / kLanes * kLanes, half = window.half;
  zero(buffer, half * width);
  zero(buffer + (half + channels) * width, half * width);
  for (Index c = 0; c < channels; ++c) {
    float* squares = buffer + (half + c) * width;
    for_vectors(count, [&](Index i, Index lanes) {
      const Floats x = load_lanes(from + c * stride + i, lanes);
      store(squares + i, x * x);
    });
  }
  for (Index c = 0; c < channels; ++c) {
    for_vectors(count, [&](Index i, Index lanes) {
      const Floats d = scale_of(window_sum(buffer + c * width + i, half, width), window);
      store_lanes(to + c * stride + i, load_lanes(from + c * stride + i, lanes) * power(d, window),
                  lanes);
    });
  }
}

template <typename T>
void lrn_planes_gradient(const void* x, const void* dy, void* dx, Index channels, Index stride,
                         Index count, Window window, float* buffer) {
  const auto* source = static_cast<const T*>(x);
  const auto* incoming = static_cast<const T*>(dy);
  auto* to = static_cast<T*>(dx);
  const Index width = (count + kLanes - 1) / kLanes * kLanes, half = window.half;
  float* ratios = buffer + (channels + 2 * half) * width;
  float* direct = ratios + (channels + 2 * half) * width;
  for (float* each : {buffer, ratios}) {
    zero(each, half * width);
    zero(each + (half + channels) * width, half * width);
  }
  for (Index c = 0; c < channels; ++c) {
    for_vectors(count, [&](Index i, Index lanes) {
      const Floats value = load_lanes(source + c * stride + i, lanes);
      store(buffer + (half + c) * width + i, value * value);
    });
  }
  for (Index c = 0; c < channels; ++c) {
    for_vectors(count, [&](Index i, Index lanes) {
      const Floats d = scale_of(window_sum(buffer + c * width + i, half, width), window);
      const Floats part = load_lanes(incoming + c * stride + i, lanes) * power(d, window);
      store(direct + c * width + i, part);
      store(ratios + (half + c) * width + i, part * load_lanes(source + c * stride + i, lanes) / d);
    });
  }
  const float slope = 2.0f * window.alpha_per_size * window.beta;
  for (Index c = 0; c < channels; ++c) {
    for_vectors(count, [&](Index i, Index lanes) {
      const Floats neighbours = window_sum(ratios + c * width + i, half, width);
      const Floats value = load_lanes(source + c * stride + i, lanes) * slope;
      store_lanes(to + c * stride + i, load(direct + c * width + i) - value * neighbours, lanes);
    });
  }
}

template <typename T>
void lrn_pixel(const void* src, void* dst, Index channels, Window window, float* buffer) {
  const auto* from = static_cast<const T*>(src);
  auto* to = static_cast<T*>(dst);
  const Index half = window.half;
  zero(buffer, half);
  for_vectors(channels, [&](Index c, Index lanes) {
    const Floats x = load_lanes(from + c, lanes);
    store(buffer + half + c, x * x);
  });
  zero(buffer + half + channels, half + kLanes);
  for_vectors(channels, [&](Index c, Index lanes) {
    const Floats d = scale_of(window_sum(buffer + c, half, 1), window);
    store_lanes(to + c, load_lanes(from + c, lanes) * power(d, window), lanes);
  });
}

template <typename T>
void lrn_pixel_gradient(const void* x, const void* dy, void* dx, Index channels, Window window,
                        float* buffer) {
  const auto* source = static_cast<const T*>(x);
  const auto* incoming = static_cast<const T*>(dy);
  auto* to = static_cast<T*>(dx);
  const Index half = window.half, room = channels + 2 * half + kLanes;
  float* ratios = buffer + room;
  float* direct = ratios + room;
  zero(buffer, half);
  zero(ratios, half);
  for_vectors(channels, [&](Index c, Index lanes) {
    const Floats value = load_lanes(source + c, lanes);
    store(buffer + half + c, value * value);
  });
  zero(buffer + half + channels, half + kLanes);
  for_vectors(channels, [&](Index c, Index lanes) {
    const Floats d = scale_of(window_sum(buffer + c, half, 1), window);
    const Floats part = load_lanes(incoming + c, lanes) * power(d, window);
    store(direct + c, part);
    store(ratios + half + c, part * load_lanes(source + c, lanes) / d);
  });
  zero(ratios + half + channels, half + kLanes);
  const float slope = 2.0f * window.alpha_per_size * window.beta;
  for_vectors(channels, [&](Index c, Index lanes) {
    const Floats neighbours = window_sum(ratios + c, half, 1);
    const Floats value = load_lanes(source + c, lanes) * slope;
    store_lanes(to + c, load(direct + c) - value * neighbours, lanes);
  });
}

}  // namespace
}  // namespace pydlbench::cpu::pointwise::PYDLBENCH_ISA
