// Padding that differs between opposite sides, done by hand: the difference is laid around the
// source by a kernel of ours (or cut off its gradient), and the library sees what is symmetric.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/problem.hpp"

struct CUstream_st;

namespace pydlbench::cuda::cudnn {

inline bool is_asymmetric(const Conv2dProblem& problem) {
  return problem.pad_top != problem.pad_bottom || problem.pad_left != problem.pad_right;
}

struct ExplicitPadding {
  Conv2dProblem inner;                    // on the larger source, padded alike on opposite sides
  std::int64_t top, left, bottom, right;  // rows and columns that the kernel adds or cuts off
};

inline ExplicitPadding explicit_padding(const Conv2dProblem& problem) {
  const auto rows = std::min(problem.pad_top, problem.pad_bottom);
  const auto columns = std::min(problem.pad_left, problem.pad_right);
  ExplicitPadding padding{problem, problem.pad_top - rows, problem.pad_left - columns,
                          problem.pad_bottom - rows, problem.pad_right - columns};
  auto& inner = padding.inner;
  inner.in_height += padding.top + padding.bottom;
  inner.in_width += padding.left + padding.right;
  inner.pad_top = inner.pad_bottom = rows;
  inner.pad_left = inner.pad_right = columns;
  return padding;
}

// "pad 0,1,0,1": top, bottom, left, right, the order of the descriptors.
inline std::string sides_text(const ExplicitPadding& padding) {
  return std::to_string(padding.top) + "," + std::to_string(padding.bottom) + "," +
         std::to_string(padding.left) + "," + std::to_string(padding.right);
}

// A stack of planes, each of rows of contiguous elements: NCHW is batch x channels planes with rows
// of `width` elements, NHWC is `batch` planes with rows of width x channels. So one copy serves
// both.
struct Planes {
  std::int64_t count, rows, row;
};

inline Planes planes_of(std::int64_t batch, std::int64_t channels, std::int64_t height,
                        std::int64_t width, bool channels_last) {
  if (channels_last) return {batch, height, width * channels};
  return {batch * channels, height, width};
}

// Lays `source` into `target` with zeros around it.
void pad(void* target, const void* source, const ExplicitPadding& padding, bool channels_last,
         std::size_t bytes_per_element, CUstream_st* stream);

// The other way round: takes what lies inside the padding.
void crop(void* target, const void* source, const ExplicitPadding& padding, bool channels_last,
          std::size_t bytes_per_element, CUstream_st* stream);

}  // namespace pydlbench::cuda::cudnn
