// How many sets of operands take turns, and where their copies lie. No CUDA here.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "cuda/sampling/sampler.hpp"
#include "cuda/tensor.hpp"

namespace pydlbench::cuda {

// What device memory is aligned to, and so every copy: kernels for aligned operands take them too.
inline constexpr std::size_t kAlignment = 256;
// A graph runs through all sets behind one gate, so there are no more than it may launch there.
inline constexpr std::size_t kMostSets = kMostGraphLaunches;

constexpr std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

inline bool is_weights(const TensorSpec& spec) { return spec.role == "weights"; }

// Whether a sample has to find the tensor outside of the cache.
inline bool is_cold(const TensorSpec& spec, CacheState cache) {
  return cache == CacheState::all_cold || (cache == CacheState::weights_cold && is_weights(spec));
}

// Bytes of one set's own copies.
inline std::size_t cold_set_bytes(const std::vector<TensorSpec>& tensors, CacheState cache) {
  std::size_t bytes = 0;
  for (const auto& spec : tensors) {
    if (is_cold(spec, cache)) bytes += aligned(spec.bytes());
  }
  return bytes;
}

// Between two turns of a set all others are used: together they make `cold_bytes` or more. One set
// where the data may be in the cache, or where the sampler flushes the cache instead.
inline std::size_t set_count(const std::vector<TensorSpec>& tensors, CacheState cache,
                             Timing timing, std::size_t cold_bytes) {
  if (cache == CacheState::hot) return 1;
  const auto bytes = cold_set_bytes(tensors, cache);
  if (bytes == 0) throw Unsupported("this layer has no weights to keep out of the cache");
  if (timing == Timing::events) return 1;
  const auto count = (cold_bytes + bytes - 1) / bytes + 1;
  if (count > kMostSets) {
    throw Unsupported("tensors of " + std::to_string(bytes) +
                      " bytes are too small to be kept out of the cache by rotating copies; "
                      "--timing events flushes it instead");
  }
  return count < 2 ? 2 : count;
}

}  // namespace pydlbench::cuda
