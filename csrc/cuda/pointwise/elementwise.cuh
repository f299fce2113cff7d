// Elementwise functions of several dense tensors with the same layout.
//
// A thread reads kUnroll vectors of each input before it computes, so that enough bytes are in
// flight to cover the memory's latency. Outputs may be the same memory as inputs: a thread writes
// only elements that it has read.
#pragma once

#include <algorithm>

#include "cuda/pointwise/channels.cuh"
#include "cuda/pointwise/launchers.hpp"
#include "cuda/pointwise/vector.cuh"

namespace pydlbench::cuda::pointwise {

template <typename T, int kInputs, int kOutputs>
struct Operands {
  const T* in[kInputs];
  T* out[kOutputs];
};

// Op has kInputs, kOutputs and operator()(first, in[kInputs][lanes], out[kOutputs][lanes]) const.
template <typename T, int kUnroll, typename Op>
__global__ void __launch_bounds__(kThreads, kMinBlocks)
    elementwise_kernel(Operands<T, Op::kInputs, Op::kOutputs> operands, std::int64_t count,
                       bool aligned, Op op) {
  constexpr int lanes = kLanes<T>;
  constexpr std::int64_t step = std::int64_t{kThreads} * lanes, per_tile = kUnroll * step;
  for (std::int64_t start = blockIdx.x * per_tile; start < count; start += gridDim.x * per_tile) {
    const std::int64_t mine = start + std::int64_t{threadIdx.x} * lanes;
    // One branch for the whole tile, so that its loads are not separated.
    const bool whole = aligned && start + per_tile <= count;
    Bits16 bits[kUnroll][Op::kInputs];
    if (whole) {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
        for (int i = 0; i < Op::kInputs; ++i) {
          bits[u][i] = load_whole(operands.in[i], mine + u * step);
        }
      }
    } else {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
        for (int i = 0; i < Op::kInputs; ++i) {
          bits[u][i] = load_bits(operands.in[i], mine + u * step, count, aligned);
        }
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const std::int64_t first = mine + u * step;
      if (!whole && first >= count) break;
      float in[Op::kInputs][lanes], out[Op::kOutputs][lanes];
#pragma unroll
      for (int i = 0; i < Op::kInputs; ++i) unpack<T>(bits[u][i], in[i]);
      op(first, in, out);
#pragma unroll
      for (int i = 0; i < Op::kOutputs; ++i) {
        store_lanes(operands.out[i], first, count, aligned, out[i]);
      }
    }
  }
}

template <typename T, int kUnroll, typename Op>
void launch_unrolled(const Op& op, const Operands<T, Op::kInputs, Op::kOutputs>& operands,
                     std::int64_t count, std::int64_t max_blocks, bool aligned,
                     CUstream_st* stream) {
  const std::int64_t per_tile = std::int64_t{kThreads} * kUnroll * kLanes<T>;
  const std::int64_t tiles = (count + per_tile - 1) / per_tile;
  const auto blocks = static_cast<unsigned>(std::min(tiles, max_blocks));
  launch(elementwise_kernel<T, kUnroll, Op>, dim3(blocks), dim3(kThreads), 0, stream, operands,
         count, aligned, op);
}

template <typename T, typename Op>
void launch_elementwise(const Op& op, const Operands<T, Op::kInputs, Op::kOutputs>& operands,
                        std::int64_t count, const Tiling& tiling, CUstream_st* stream) {
  bool aligned = true;
  for (const T* pointer : operands.in) aligned = aligned && is_aligned(pointer);
  for (const T* pointer : operands.out) aligned = aligned && is_aligned(pointer);
  // With several inputs, two vectors of each have as many bytes in flight.
  constexpr int many = unrolled_vectors(Op::kInputs);
  if (tiling.unrolled) {
    launch_unrolled<T, many>(op, operands, count, tiling.max_blocks, aligned, stream);
  } else {
    launch_unrolled<T, 1>(op, operands, count, tiling.max_blocks, aligned, stream);
  }
}

// Calls f with a value of the C++ type that stores `type`.
template <typename F>
void with_type(DataType type, F&& f) {
  switch (type) {
    case DataType::float32:
      return f(float{});
    case DataType::float16:
      return f(half_t{});
    case DataType::bfloat16:
      return f(bfloat16_t{});
    default:
      throw Unsupported("pointwise kernels compute on float32, float16 and bfloat16 only");
  }
}

}  // namespace pydlbench::cuda::pointwise
