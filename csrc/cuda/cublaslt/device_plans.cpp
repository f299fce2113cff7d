// The search on a real device, with the loaded library.
#include <cuda_runtime_api.h>

#include <memory>
#include <utility>

#include "cuda/convert.hpp"
#include "cuda/cublaslt/plans.hpp"
#include "cuda/cublaslt/search.hpp"
#include "cuda/runtime/check.hpp"
#include "cuda/runtime/device.hpp"

namespace pydlbench::cuda {

namespace {

std::shared_ptr<const void> scales_on(const Device& device, const TensorSpec& spec) {
  auto memory = std::make_shared<DeviceMemory>(device, scale_bytes(spec), "the scales of blocks");
  to_scales(spec, memory->data(), device.stream());
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
  // Called while this function searches, not by the plans.
  session->block_scales = [&device](const TensorSpec& spec) { return scales_on(device, spec); };
  return cublaslt::plans(session, problem, pass, mode, capability, workspace_limit, fused);
}

}  // namespace pydlbench::cuda
