// Strided copies with conversion between number formats.
//
// Threads write contiguous memory. Reads are strided if the order differs: at worst each element
// needs one sector of 32 bytes, so that 800 MB from NCHW to NHWC take some 20 ms on the slowest
// card. This happens once per tensor and is not timed.
#include "cuda/convert.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "cuda/element.cuh"

namespace pydlbench::cuda {

constexpr unsigned kConvertThreads = 256;

// Dimensions with source and target strides; the last axis is the fastest.
struct Walk {
  int rank;
  std::int64_t dims[kMaxRank], from[kMaxRank], to[kMaxRank];
};

inline Walk walk_along_target(const std::vector<std::int64_t>& dims,
                              const std::vector<std::int64_t>& from,
                              const std::vector<std::int64_t>& to) {
  std::vector<std::size_t> axes(dims.size());
  std::iota(axes.begin(), axes.end(), std::size_t{0});
  std::stable_sort(axes.begin(), axes.end(), [&](auto a, auto b) { return to[a] > to[b]; });
  Walk walk{static_cast<int>(dims.size()), {}, {}, {}};
  for (std::size_t i = 0; i < axes.size(); ++i) {
    walk.dims[i] = dims[axes[i]];
    walk.from[i] = from[axes[i]];
    walk.to[i] = to[axes[i]];
  }
  return walk;
}

struct Places {
  std::int64_t source, target;
};

__device__ inline Places places_of(const Walk& walk, std::int64_t index) {
  Places places{0, 0};
  // Unrolled, so that arrays by axis are not in local memory.
#pragma unroll
  for (int axis = kMaxRank - 1; axis >= 0; --axis) {
    if (axis >= walk.rank) continue;
    const auto rest = index / walk.dims[axis];
    const auto at = index - rest * walk.dims[axis];
    places.source += at * walk.from[axis];
    places.target += at * walk.to[axis];
    index = rest;
  }
  return places;
}

// Writes pairs of four bits; the elements lie without gaps in the target.
__global__ void pack_kernel(const float* from, std::uint8_t* to, Walk walk, std::int64_t elements) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       2 * i < elements; i += step) {
    int byte = float4_code(from[places_of(walk, 2 * i).source]);
    if (2 * i + 1 < elements) byte |= float4_code(from[places_of(walk, 2 * i + 1).source]) << 4;
    to[i] = static_cast<std::uint8_t>(byte);
  }
}

__global__ void convert_kernel(const void* from, DataType from_type, void* to, DataType to_type,
                               Walk walk, std::int64_t elements) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
       i < elements; i += step) {
    const auto at = places_of(walk, i);
    store(to, to_type, at.target, load(from, from_type, at.source));
  }
}

__global__ void zero_kernel(unsigned char* bytes, std::int64_t count) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step) {
    bytes[i] = 0;
  }
}

inline dim3 convert_grid(std::int64_t elements, std::int64_t max_blocks) {
  const std::int64_t blocks = (elements + kConvertThreads - 1) / kConvertThreads;
  return dim3(static_cast<unsigned>(std::min(blocks, max_blocks)));
}

void to_storage(const float* dense, const TensorSpec& spec, void* storage, CUstream_st* stream,
                std::int64_t max_blocks) {
  const auto view = view_of(spec, storage);
  if (spec.elements() != spec.span()) {
    const auto bytes = static_cast<std::int64_t>(spec.bytes());
    launch(zero_kernel, convert_grid(bytes, max_blocks), dim3(kConvertThreads), 0, stream,
           static_cast<unsigned char*>(storage), bytes);
  }
  const auto walk = walk_along_target(spec.dims, plain_strides(spec.dims), spec.strides);
  if (spec.type == DataType::float4_e2m1) {
    PYDLBENCH_CHECK(spec.elements() == spec.span(), "pairs of elements lie without gaps");
    launch(pack_kernel, convert_grid(spec.elements(), max_blocks), dim3(kConvertThreads), 0, stream,
           dense, static_cast<std::uint8_t*>(storage), walk, spec.elements());
    return;
  }
  launch(convert_kernel, convert_grid(spec.elements(), max_blocks), dim3(kConvertThreads), 0,
         stream, dense, DataType::float32, view.data, view.type, walk, spec.elements());
}

void to_dense(const TensorSpec& spec, const void* storage, float* dense, CUstream_st* stream,
              std::int64_t max_blocks) {
  const auto view = view_of(spec, nullptr);
  const auto walk = walk_along_target(spec.dims, spec.strides, plain_strides(spec.dims));
  launch(convert_kernel, convert_grid(spec.elements(), max_blocks), dim3(kConvertThreads), 0,
         stream, storage, view.type, dense, DataType::float32, walk, spec.elements());
}

}  // namespace pydlbench::cuda
