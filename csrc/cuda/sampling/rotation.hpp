// Number and memory of rotating sets of operands. Independent of CUDA.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "cuda/sampling/sampler.hpp"
#include "cuda/tensor.hpp"

namespace pydlbench::cuda {

// Alignment of device memory, and so of all copies.
inline constexpr std::size_t kAlignment = 256;
// A graph uses all sets behind one gate, so its limit applies.
inline constexpr std::size_t kMaxSets = kMaxGraphLaunches;

constexpr std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

inline bool is_weights(const TensorSpec& spec) { return spec.role == "weights"; }

// Whether the tensor must not be in the cache when a sample starts.
inline bool is_cold(const TensorSpec& spec, CacheState cache) {
  return cache == CacheState::all_cold || (cache == CacheState::weights_cold && is_weights(spec));
}

// Size of one set's copies.
inline std::size_t cold_set_bytes(const std::vector<TensorSpec>& tensors, CacheState cache) {
  std::size_t bytes = 0;
  for (const auto& spec : tensors) {
    if (is_cold(spec, cache)) bytes += aligned(spec.bytes());
  }
  return bytes;
}

// Number of sets. Between two turns of a set, all others are used, which have at least `cold_bytes`
// together. One set if the data may be in the cache, or if the sampler flushes the cache instead.
inline std::size_t set_count(const std::vector<TensorSpec>& tensors, CacheState cache,
                             Timing timing, std::size_t cold_bytes) {
  if (cache == CacheState::hot) return 1;
  const auto bytes = cold_set_bytes(tensors, cache);
  if (bytes == 0) throw Unsupported("this layer has no weights to keep out of the cache");
  if (timing == Timing::events) return 1;
  const auto count = (cold_bytes + bytes - 1) / bytes + 1;
  if (count > kMaxSets) {
    throw Unsupported("tensors of " + std::to_string(bytes) +
                      " bytes are too small to be kept out of the cache by rotating copies; "
                      "--timing events flushes it instead");
  }
  return count < 2 ? 2 : count;
}

}  // namespace pydlbench::cuda
