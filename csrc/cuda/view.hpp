// A tensor as kernels of ours address it: plain data that is passed to a launch by value.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/error.hpp"
#include "cuda/tensor.hpp"

namespace pydlbench::cuda {

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
