#include "cuda/probes/fma_peak.hpp"

#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "core/error.hpp"
#include "cuda/probes/fma_kernels.hpp"
#include "cuda/runtime/check.hpp"
#include "cuda/sampling/real_calls.hpp"

namespace pydlbench::cuda {
namespace {

FmaKind kind_of(const Device& device, const std::string& precision) {
  if (precision == "fp32") return FmaKind::fp32;
  if (precision != "fp16") {
    throw Unsupported("no FMA probe for " + precision + "; there is: fp32, fp16");
  }
  if (device.facts().capability() < 53) {
    throw Unsupported(device.facts().name + " has no float16 arithmetic");
  }
  return FmaKind::fp16;
}

// Angles between 0.1 and 0.2 radians, then starting values between 0.25 and 0.75.
std::vector<std::uint32_t> seeds_of(FmaKind kind) {
  std::vector<std::uint32_t> seeds(kFmaSeeds);
  for (unsigned i = 0; i < kFmaSeeds; ++i) {
    const float part = static_cast<float>(i % (kFmaSeeds / 2)) / (kFmaSeeds / 2);
    const float value = i < kFmaSeeds / 2 ? 0.1f + 0.1f * part : 0.25f + 0.5f * part;
    if (kind == FmaKind::fp32) {
      std::memcpy(&seeds[i], &value, sizeof value);
    } else {
      const __half2 pair = __floats2half2_rn(value, -value);
      std::memcpy(&seeds[i], &pair, sizeof pair);
    }
  }
  return seeds;
}

}  // namespace

ProbeResult fma_peak(const Device& device, const std::string& precision, double seconds) {
  const FmaKind kind = kind_of(device, precision);
  device.make_current();
  const auto blocks = static_cast<unsigned>(device.facts().multiprocessors);
  const auto seeds = seeds_of(kind);
  const DeviceMemory input(device, seeds.size() * kFmaRegisterBytes, "the FMA probe's seeds");
  const DeviceMemory output(device, std::size_t{blocks} * kFmaThreads * kFmaRegisterBytes,
                            "the FMA probe's results");
  const auto calls = shared_calls(device);
  CUstream_st* const stream = calls->stream();
  PYDLBENCH_CUDA_CHECK(
      cudaMemcpyAsync(input.data(), seeds.data(), input.bytes(), cudaMemcpyHostToDevice, stream));
  const auto launch = [&](std::uint32_t iterations) {
    launch_fma(kind, blocks, kFmaThreads, input.data(), output.data(), iterations, stream);
  };
  constexpr std::uint32_t kMostIterations = 1u << 24;
  auto found =
      run_rounds(*calls, seconds, fma_flops(kind, blocks, kFmaThreads, 1), kMostIterations, launch);
  found.kernel = kind == FmaKind::fp32 ? "FFMA on float" : "HFMA2 on half2";
  return found;
}

}  // namespace pydlbench::cuda
