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

// Blocks with a common scale, in rows of contiguous elements; size 0: none.
struct Blocks {
  std::int64_t size, per_row, rows;  // rows of one matrix
};

inline Blocks blocks_of(const TensorSpec& spec) {
  if (spec.scale_block == 0) return {0, 0, 0};
  PYDLBENCH_CHECK(spec.dims.size() == 3 && spec.elements() == spec.span(),
                  "blocks are in matrices without gaps");
  const std::size_t inner = spec.strides[1] == 1 ? 1 : 2;
  PYDLBENCH_CHECK(spec.dims[inner] % spec.scale_block == 0, "rows of whole blocks");
  return {spec.scale_block, spec.dims[inner] / spec.scale_block, spec.dims[3 - inner]};
}

// The scale of a block is 2 to the power of minus this.
__device__ inline int scale_shift(std::int64_t row, std::int64_t block) {
  const auto mixed = static_cast<std::uint32_t>(row) * 0x9e3779b1u +
                     static_cast<std::uint32_t>(block) * 0x85ebca77u;
  return static_cast<int>((mixed >> 16) % 3);
}

// A value as it is stored at a place of the target.
__device__ inline float divided(float value, const Blocks& blocks, std::int64_t place) {
  if (blocks.size == 0) return value;
  const auto block = place / blocks.size;
  const auto row = block / blocks.per_row;
  return value * static_cast<float>(1 << scale_shift(row, block - row * blocks.per_row));
}

// Calls a function with the numbers below `count`, each in one thread of the grid.
template <typename Body>
__device__ void for_each(std::int64_t count, Body body) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  auto i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; i < count; i += step) body(i);
}

// Writes pairs of four bits; the elements lie without gaps in the target.
__global__ void pack_kernel(const float* from, std::uint8_t* to, Walk walk, Blocks blocks,
                            std::int64_t elements) {
  const auto code = [&](std::int64_t i) {
    return float4_code(divided(from[places_of(walk, i).source], blocks, i));
  };
  for_each((elements + 1) / 2, [&](std::int64_t i) {
    int byte = code(2 * i);
    if (2 * i + 1 < elements) byte |= code(2 * i + 1) << 4;
    to[i] = static_cast<std::uint8_t>(byte);
  });
}

__global__ void convert_kernel(const void* from, DataType from_type, void* to, DataType to_type,
                               Walk walk, Blocks blocks, std::int64_t elements) {
  for_each(elements, [&](std::int64_t i) {
    const auto at = places_of(walk, i);
    store(to, to_type, at.target, divided(load(from, from_type, at.source), blocks, at.target));
  });
}

__global__ void zero_kernel(unsigned char* bytes, std::int64_t count) {
  for_each(count, [&](std::int64_t i) { bytes[i] = 0; });
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
           dense, static_cast<std::uint8_t*>(storage), walk, blocks_of(spec), spec.elements());
    return;
  }
  launch(convert_kernel, convert_grid(spec.elements(), max_blocks), dim3(kConvertThreads), 0,
         stream, dense, DataType::float32, view.data, view.type, walk, blocks_of(spec),
         spec.elements());
}

void to_dense(const TensorSpec& spec, const void* storage, float* dense, CUstream_st* stream,
              std::int64_t max_blocks) {
  PYDLBENCH_CHECK(spec.scale_block == 0, "only inputs have scales of blocks");
  const auto view = view_of(spec, nullptr);
  const auto walk = walk_along_target(spec.dims, spec.strides, plain_strides(spec.dims));
  launch(convert_kernel, convert_grid(spec.elements(), max_blocks), dim3(kConvertThreads), 0,
         stream, storage, view.type, dense, DataType::float32, walk, Blocks{}, spec.elements());
}

// Tiles of cuBLASLt's scales: 32 groups of 16 bytes, in each of which four blocks of the rows r, r
// + 32, r + 64, r + 96.
constexpr std::int64_t kTileRows = 128, kTileBlocks = 4, kTileBytes = kTileRows * kTileBlocks;

inline std::int64_t tiles(std::int64_t size, std::int64_t of) { return (size + of - 1) / of; }

// Bytes beyond the matrix are one, too.
__global__ void scales_kernel(std::uint8_t* to, Blocks blocks, int one, int octave,
                              std::int64_t across, std::int64_t down, std::int64_t bytes) {
  for_each(bytes, [&](std::int64_t i) {
    const auto tile = i / kTileBytes, rest = i - tile * kTileBytes;
    const auto matrix = tile / (across * down);
    const auto row = tile / across % down * kTileRows + rest / 16 + rest / 4 % 4 * 32;
    const auto block = tile % across * kTileBlocks + rest % 4;
    const bool inside = row < blocks.rows && block < blocks.per_row;
    const int shift = inside ? scale_shift(matrix * blocks.rows + row, block) : 0;
    to[i] = static_cast<std::uint8_t>(one - octave * shift);
  });
}

std::size_t scale_bytes(const TensorSpec& spec) {
  const auto blocks = blocks_of(spec);
  return static_cast<std::size_t>(spec.dims[0] * tiles(blocks.rows, kTileRows) *
                                  tiles(blocks.per_row, kTileBlocks) * kTileBytes);
}

void to_scales(const TensorSpec& spec, void* scales, CUstream_st* stream, std::int64_t max_blocks) {
  const auto blocks = blocks_of(spec);
  const auto bytes = static_cast<std::int64_t>(scale_bytes(spec));
  // UE4M3 has three bits of significand below the exponent, UE8M0 none.
  const bool has_digits = spec.type == DataType::float4_e2m1;
  launch(scales_kernel, convert_grid(bytes, max_blocks), dim3(kConvertThreads), 0, stream,
         static_cast<std::uint8_t*>(scales), blocks, has_digits ? 0x38 : 0x7f, has_digits ? 8 : 1,
         tiles(blocks.per_row, kTileBlocks), tiles(blocks.rows, kTileRows), bytes);
}

}  // namespace pydlbench::cuda
