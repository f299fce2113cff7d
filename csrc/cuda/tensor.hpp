// The layout of a plan's tensor in device memory, and its view in our kernels.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "cuda/mode.hpp"

namespace pydlbench::cuda {

enum class Use {
  input,    // from the caller's array of the same role
  output,   // filled with NaN before it is verified
  in_out,   // from the caller's array and overwritten: restored before it is verified
  derived,  // computed by the plan from the inputs: see Plan::derive
};

// `dims` are in the order of the caller's dense float32 array (batch, channels, height, width; out
// channels, channels per group, kernel height, kernel width; batch, rows, columns; or one
// dimension). `strides` are in elements.
struct TensorSpec {
  std::string role;  // "src", "weights", "dst", "bias"; gradients keep their tensor's name
  DataType type;
  std::vector<std::int64_t> dims, strides;
  Use use;
  // Number of contiguous elements with a common scale; 0 if there is none. See to_scales().
  int scale_block = 0;

  std::int64_t elements() const {
    std::int64_t count = 1;
    for (const auto dim : dims) count *= dim;
    return count;
  }
  // Distance from the first to the last element, inclusive.
  std::int64_t span() const {
    std::int64_t last = 0;
    for (std::size_t i = 0; i < dims.size(); ++i) last += (dims[i] - 1) * strides[i];
    return last + 1;
  }
  std::size_t bytes() const {
    const auto places = type == DataType::float4_e2m1 ? (span() + 1) / 2 : span();
    return static_cast<std::size_t>(places) * bytes_of(type);
  }
  // Whether elements have the same addresses, independent of use.
  bool same_memory_as(const TensorSpec& other) const {
    return role == other.role && type == other.type && dims == other.dims &&
           strides == other.strides && scale_block == other.scale_block;
  }
};

// Row-major strides: the last dimension is contiguous (NCHW, KCRS).
inline std::vector<std::int64_t> plain_strides(const std::vector<std::int64_t>& dims) {
  std::vector<std::int64_t> strides(dims.size(), 1);
  for (std::size_t i = dims.size(); i-- > 1;) strides[i - 1] = strides[i] * dims[i];
  return strides;
}

// Strides with the second dimension contiguous (NHWC, KRSC).
inline std::vector<std::int64_t> channels_last_strides(const std::vector<std::int64_t>& dims) {
  auto sides = dims;
  sides.erase(sides.begin() + 1);
  sides.push_back(dims[1]);
  auto strides = plain_strides(sides);
  strides.pop_back();
  strides.insert(strides.begin() + 1, 1);
  return strides;
}

// A tensor in our kernels: plain data, passed to a launch by value.
inline constexpr int kMaxRank = 5;

struct View {
  void* data;
  DataType type;
  int rank;
  std::int64_t dims[kMaxRank], strides[kMaxRank];
};

inline View view_of(const TensorSpec& spec, void* data) {
  PYDLBENCH_CHECK(
      !spec.dims.empty() && spec.dims.size() <= kMaxRank && spec.dims.size() == spec.strides.size(),
      spec.role + ": one to five dimensions, each with a stride");
  PYDLBENCH_CHECK(std::all_of(spec.dims.begin(), spec.dims.end(), [](auto dim) { return dim > 0; }),
                  spec.role + ": a dimension without elements");
  View view{data, spec.type, static_cast<int>(spec.dims.size()), {}, {}};
  std::copy(spec.dims.begin(), spec.dims.end(), view.dims);
  std::copy(spec.strides.begin(), spec.strides.end(), view.strides);
  return view;
}

}  // namespace pydlbench::cuda
