// A pooling as our kernels see it: images of pixels of channels, whatever the layout.
//
// In NHWC a pixel has all channels. In NCHW each channel is an image of its own whose pixels have
// one channel: the same kernels serve both.
#pragma once

#include <cstdint>

#include "core/error.hpp"
#include "core/problem.hpp"
#include "cuda/pointwise/divider.hpp"

namespace pydlbench::cuda::pooling {

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

inline Shape shape_of(const Pool2dProblem& p, bool channels_last) {
  const std::int64_t channels = channels_last ? p.channels : 1;
  const auto in = p.in_height * p.in_width * channels;
  const auto out = p.out_height * p.out_width * channels;
  // Inside an image kernels count in 32 bits; images and their offsets are counted in 64.
  if (in >= INT32_MAX || out >= INT32_MAX) {
    throw Unsupported("images of 2**31 elements and more");
  }
  const auto narrow = [](std::int64_t size) { return static_cast<int>(size); };
  return {channels_last ? p.batch : p.batch * p.channels,
          narrow(channels),
          narrow(p.in_height),
          narrow(p.in_width),
          narrow(p.out_height),
          narrow(p.out_width),
          narrow(p.kernel_height),
          narrow(p.kernel_width),
          narrow(p.stride_height),
          narrow(p.stride_width),
          narrow(p.pad_top),
          narrow(p.pad_left),
          p.mode == PoolMode::avg_include_padding};
}

// From a thread's number to its place: vectors of channels, then columns, rows, images.
struct Places {
  pointwise::Divider vectors, columns, rows;
  std::int64_t count;
};

inline Places places(const Shape& shape, int height, int width, int lanes) {
  const std::int64_t vectors = shape.channels / lanes;
  const std::int64_t count = shape.images * height * width * vectors;
  return {{vectors, count}, {width, count}, {height, count}, count};
}

}  // namespace pydlbench::cuda::pooling
