// The search on a real device, with the loaded library.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "cuda/cublaslt/plans.hpp"
#include "cuda/cublaslt/search.hpp"
#include "cuda/runtime/check.hpp"
#include "cuda/runtime/device.hpp"

namespace pydlbench::cuda {

namespace {

// A byte for each block of the larger operand, in tiles of 128 rows and four blocks; all are one.
std::shared_ptr<const void> block_scales_on(const Device& device, const PlainGemm& p, Pass pass,
                                            Mode mode) {
  const auto padded = [](std::int64_t size, std::int64_t multiple) {
    return (size + multiple - 1) / multiple * multiple;
  };
  // The side that is summed over, and the larger one of the others.
  auto terms = p.k, rows = std::max(p.m, p.n);
  if (pass == Pass::backward_data) terms = p.n, rows = std::max(p.m, p.k);
  if (pass == Pass::backward_weights) terms = p.m, rows = std::max(p.k, p.n);
  const auto bytes = p.batch_count * padded(rows, 128) * padded(terms / scale_block(mode), 4);
  auto memory = std::make_shared<DeviceMemory>(device, static_cast<std::size_t>(bytes),
                                               "the scales of blocks");
  memory->fill(mode == Mode::nvfp4_tc ? 0x38 : 0x7f, device.stream());  // UE4M3, UE8M0
  device.synchronize();
  return {memory, memory->data()};
}

std::shared_ptr<const void> one_on(const Device& device) {
  auto memory = std::make_shared<DeviceMemory>(device, sizeof(float), "the scale of FP8 matrices");
  constexpr float one = 1.0f;
  PYDLBENCH_CUDA_CHECK(
      cudaMemcpyAsync(memory->data(), &one, sizeof one, cudaMemcpyHostToDevice, device.stream()));
  device.synchronize();
  return {memory, memory->data()};
}

}  // namespace

std::vector<std::shared_ptr<Plan>> gemm_plans(const Device& device, const PlainGemm& problem,
                                              Pass pass, Mode mode, std::size_t workspace_limit,
                                              bool fused) {
  const int capability = device.facts().capability();
  // Before the library is loaded, because an unsupported mode is the more useful error.
  cublaslt::check_mode(mode, problem, capability);
  device.make_current();
  auto session = std::make_shared<cublaslt::Session>(cublaslt::Lt::loaded());
  if (is_fp8(mode)) session->one = one_on(device);
  if (scale_block(mode) > 0) session->one = block_scales_on(device, problem, pass, mode);
  return cublaslt::plans(session, problem, pass, mode, capability, workspace_limit, fused);
}

}  // namespace pydlbench::cuda
