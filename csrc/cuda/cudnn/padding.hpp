// Padding that differs between opposite sides: our own kernel pads the source (or crops its
// gradient) by the difference, and the library gets a symmetric problem.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/problem.hpp"

struct CUstream_st;

namespace pydlbench::cuda::cudnn {

// For images of two sides.
inline bool is_asymmetric(const ConvProblem& problem) {
  return problem.pad_before[0] != problem.pad_after[0] ||
         problem.pad_before[1] != problem.pad_after[1];
}

struct ExplicitPadding {
  ConvProblem inner;  // on the larger source, with the same padding on opposite sides
  std::int64_t top, left, bottom, right;  // rows and columns that the kernel adds or removes
};

inline ExplicitPadding explicit_padding(const ConvProblem& problem) {
  const auto rows = std::min(problem.pad_before[0], problem.pad_after[0]);
  const auto columns = std::min(problem.pad_before[1], problem.pad_after[1]);
  ExplicitPadding padding{problem, problem.pad_before[0] - rows, problem.pad_before[1] - columns,
                          problem.pad_after[0] - rows, problem.pad_after[1] - columns};
  auto& inner = padding.inner;
  inner.in_size[0] += padding.top + padding.bottom;
  inner.in_size[1] += padding.left + padding.right;
  inner.pad_before[0] = inner.pad_after[0] = rows;
  inner.pad_before[1] = inner.pad_after[1] = columns;
  return padding;
}

// "pad 0,1,0,1": top, bottom, left, right, the order of the descriptors.
inline std::string sides_text(const ExplicitPadding& padding) {
  return std::to_string(padding.top) + "," + std::to_string(padding.bottom) + "," +
         std::to_string(padding.left) + "," + std::to_string(padding.right);
}

// A stack of planes with rows of contiguous elements: NCHW has batch x channels planes with rows of
// `width` elements, NHWC has `batch` planes with rows of width x channels.
struct Planes {
  std::int64_t count, rows, row;
};

inline Planes planes_of(std::int64_t batch, std::int64_t channels, std::int64_t height,
                        std::int64_t width, bool channels_last) {
  if (channels_last) return {batch, height, width * channels};
  return {batch * channels, height, width};
}

// Copies `source` to `target` with zeros around it.
void pad(void* target, const void* source, const ExplicitPadding& padding, bool channels_last,
         std::size_t bytes_per_element, CUstream_st* stream);

// The inverse: copies the part inside the padding.
void crop(void* target, const void* source, const ExplicitPadding& padding, bool channels_last,
          std::size_t bytes_per_element, CUstream_st* stream);

}  // namespace pydlbench::cuda::cudnn
