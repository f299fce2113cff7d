// Windows of a pooling, and vectors of neighbouring channels.
#pragma once

#include <cstdint>

#include "cuda/pooling/choice.hpp"
#include "cuda/pooling/shape.cuh"
#include "cuda/simt/number.hpp"
#include "cuda/simt/simt.hpp"

namespace pydlbench::cuda::pooling {

enum class Kind { maximum, maximum_and_argmax, average };

constexpr int kThreads = 256;

// Moved by one access to memory.
template <typename T, int kLanes>
struct alignas(sizeof(T) * kLanes) Pack {
  T lane[kLanes];
};

template <int kLanes, typename T>
__device__ __forceinline__ Pack<T, kLanes> load(const T* from) {
  return *reinterpret_cast<const Pack<T, kLanes>*>(from);
}

template <typename T, int kLanes>
__device__ __forceinline__ void store(T* to, const Pack<T, kLanes>& pack) {
  *reinterpret_cast<Pack<T, kLanes>*>(to) = pack;
}

template <typename T, int kLanes>
__device__ __forceinline__ Pack<T, kLanes> packed(const float (&values)[kLanes]) {
  Pack<T, kLanes> pack;
#pragma unroll
  for (int lane = 0; lane < kLanes; ++lane) pack.lane[lane] = from_float<T>(values[lane]);
  return pack;
}

__device__ __forceinline__ int clamped(int value, int most) {
  return value < 0 ? 0 : value > most ? most : value;
}

// Rows (or columns) of a window from `first` on that lie inside the image.
__device__ __forceinline__ int inside(int first, int kernel, int size) {
  const int begin = first < 0 ? 0 : first;
  const int end = first + kernel < size ? first + kernel : size;
  return end - begin;
}

// What an average multiplies the sum of the window at (top, left) by.
__device__ __forceinline__ float share(const Shape& s, int top, int left) {
  const int count = s.counts_padding ? s.kernel_height * s.kernel_width
                                     : inside(top, s.kernel_height, s.in_height) *
                                           inside(left, s.kernel_width, s.in_width);
  return 1.0f / static_cast<float>(count);
}

// Where a thread works: its image, its pixel, its first channel.
struct Place {
  std::int64_t image;
  int row, column, channel;
};

__device__ __forceinline__ Place place_of(const Places& places, std::int64_t index, int lanes) {
  const auto pixel = places.vectors.quotient(index);
  const auto line = places.columns.quotient(pixel);
  const auto image = places.rows.quotient(line);
  return {image, static_cast<int>(line - image * places.rows.divisor()),
          static_cast<int>(pixel - line * places.columns.divisor()),
          static_cast<int>(index - pixel * places.vectors.divisor()) * lanes};
}

__device__ __forceinline__ std::int64_t thread_index() {
  return std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
}

inline dim3 blocks_for(std::int64_t threads) {
  const auto blocks = (threads + kThreads - 1) / kThreads;
  PYDLBENCH_CHECK(blocks <= INT32_MAX, "a grid of at most 2**31 - 1 blocks");
  return dim3(static_cast<unsigned>(blocks));
}

}  // namespace pydlbench::cuda::pooling
