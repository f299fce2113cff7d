// Names of cuBLASLt's algorithms.
#pragma once

#include <cstdint>
#include <string>

namespace pydlbench::cuda::cublaslt {

// CUBLASLT_ALGO_CONFIG_*; 0 is the library's "undefined" or "automatic".
struct AlgorithmConfig {
  int id = -1;
  std::uint32_t tile = 0, stages = 0;
  int split_k = 1;
  std::uint32_t reduction_scheme = 0, swizzle = 0, custom_option = 0;
  std::uint16_t inner_shape = 0, cluster = 0;
};

// "128x256"; "#700" for an identifier that is not in this table.
std::string tile_name(std::uint32_t id);
std::string stages_name(std::uint32_t id);
std::string cluster_name(std::uint32_t id);

// "algo 66 tile 128x256 stages 64x4 split-k 2 (compute type) swizzle 1 option 3 cluster 2x1x1",
// without undefined and default values.
std::string text(const AlgorithmConfig& config);

}  // namespace pydlbench::cuda::cublaslt
