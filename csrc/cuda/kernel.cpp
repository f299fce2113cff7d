#include "cuda/kernel.hpp"

#include <cuda_runtime_api.h>

#include <utility>

#include "core/error.hpp"
#include "cuda/runtime/check.hpp"
#include "cuda/runtime/ranges.hpp"
#include "cuda/sampling/guards.hpp"
#include "cuda/sampling/rotation.hpp"

namespace pydlbench::cuda {

namespace {

// NaN in every float format.
constexpr unsigned char kPoison = 0xff;

bool is_written(const TensorSpec& spec) {
  return spec.use == Use::output || spec.use == Use::in_out;
}

void copy(void* to, const void* from, std::size_t bytes, CUstream_st* stream) {
  PYDLBENCH_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream));
}

}  // namespace

Kernel::Kernel(std::shared_ptr<Plan> plan, std::shared_ptr<Arena> arena, CacheState cache,
               Timing timing, std::size_t cold_bytes)
    : plan_(std::move(plan)), arena_(std::move(arena)), device_(arena_->device()) {
  device_->make_current();
  build_seconds_ = plan_->prepare();
  const auto sets = set_count(plan_->tensors(), cache, timing, cold_bytes);
  take_tensors();
  if (plan_->workspace_bytes() > 0) {
    workspace_ = DeviceMemory(*device_, plan_->workspace_bytes(), "a plan's workspace");
    // Like in frameworks, the workspace is not initialised: plans must not rely on its contents.
    workspace_.fill(kPoison, device_->stream());
  }
  work_.plan = plan_.get();
  work_.workspace = workspace_.data();
  plan_->derive(work_.pointers.front(), work_.workspace, device_->stream());
  if (sets > 1) rotate(cache, sets);
  device_->synchronize();
  calls_ = shared_calls(*device_);
  sampler_ = std::make_unique<Sampler>(*calls_, work_, cache, timing, prefetches(cache));
}

void Kernel::take_tensors() {
  const auto& tensors = plan_->tensors();
  std::vector<void*> pointers;
  inputs_.resize(tensors.size());
  own_.resize(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto& spec = tensors[i];
    if (is_written(spec)) outputs_.push_back(i);
    if (spec.use == Use::input) {
      inputs_[i] = arena_->get(spec);
      // Kernels take pointers to non-const, but only read inputs.
      pointers.push_back(const_cast<void*>(inputs_[i]->memory.data()));
      continue;
    }
    own_[i] = DeviceMemory(*device_, spec.bytes(), spec.role + " of a kernel");
    restore(i);
    pointers.push_back(own_[i].data());
  }
  work_.pointers.push_back(std::move(pointers));
}

// Sets a tensor to its state before the kernel runs.
void Kernel::restore(std::size_t tensor) const {
  const auto& spec = plan_->tensors()[tensor];
  if (spec.use == Use::in_out) {
    copy(own_[tensor].data(), arena_->get(spec)->memory.data(), spec.bytes(), device_->stream());
  } else {
    own_[tensor].fill(kPoison, device_->stream());
  }
}

void Kernel::rotate(CacheState cache, std::size_t sets) {
  const auto& tensors = plan_->tensors();
  const auto set_bytes = cold_set_bytes(tensors, cache);
  copies_ = DeviceMemory(*device_, (sets - 1) * set_bytes,
                         std::to_string(sets - 1) + " copies that keep a kernel's data cold");
  const auto first = work_.pointers.front();
  auto* target = static_cast<char*>(copies_.data());
  work_.pointers.reserve(sets);
  for (std::size_t set = 1; set < sets; ++set) {
    auto pointers = first;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (!is_cold(tensors[i], cache)) continue;
      copy(target, first[i], tensors[i].bytes(), device_->stream());
      pointers[i] = target;
      target += aligned(tensors[i].bytes());
    }
    work_.pointers.push_back(std::move(pointers));
  }
}

// Tensors that are loaded into the cache after a flush.
std::vector<Prefetch> Kernel::prefetches(CacheState cache) const {
  std::vector<Prefetch> result;
  if (cache != CacheState::weights_cold) return result;
  const auto& tensors = plan_->tensors();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (is_cold(tensors[i], cache)) continue;
    result.push_back({work_.pointers.front()[i], tensors[i].bytes()});
  }
  return result;
}

SampleResult Kernel::sample(const SampleRequest& request) {
  device_->make_current();
  return sampler_->sample(request);
}

LaunchTimes Kernel::launch_times(int repetitions) {
  device_->make_current();
  return sampler_->launch_times(repetitions);
}

Load Kernel::run_for(double seconds) {
  device_->make_current();
  return cuda::run_for(*calls_, work_, seconds);
}

std::vector<GraphKernel> Kernel::kernels() {
  device_->make_current();
  Capture capture(*calls_);
  capture.begin();
  work_.enqueue(0, device_->stream());
  return RealCalls::kernels(*capture.end());
}

void Kernel::run_marked(const std::string& name) {
  device_->make_current();
  const Range range(name);
  Draining stream(*calls_);
  work_.enqueue(0, device_->stream());
  stream.wait();
}

void Kernel::run_poisoned() {
  device_->make_current();
  for (const auto i : outputs_) restore(i);
  work_.enqueue(0, device_->stream());
  device_->synchronize();
}

void Kernel::read(std::size_t tensor, float* dense) const {
  download(*device_, plan_->tensors().at(tensor), own_.at(tensor).data(), dense);
}

Comparison Kernel::verify(const Reference& reference, Arena& arena) const {
  const auto& tensors = plan_->tensors();
  for (const auto i : outputs_) {
    if (tensors[i].role == reference.role()) {
      return reference.compare(arena, tensors[i], own_[i].data());
    }
  }
  throw PrimitiveFailure(plan_->facts().primitive,
                         "writes no " + reference.role() + " for the reference to compare with");
}

}  // namespace pydlbench::cuda
