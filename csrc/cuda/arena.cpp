#include "cuda/arena.hpp"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <utility>

#include "core/error.hpp"
#include "cuda/convert.hpp"
#include "cuda/runtime/check.hpp"

namespace pydlbench::cuda {

void download(const Device& device, const TensorSpec& spec, const void* source, float* dense) {
  const auto bytes = static_cast<std::size_t>(spec.elements()) * sizeof(float);
  device.make_current();
  DeviceMemory converted;
  if (spec.type != DataType::float32 || spec.strides != plain_strides(spec.dims)) {
    converted = DeviceMemory(device, bytes, spec.role + " as float32");
    to_dense(spec, source, static_cast<float*>(converted.data()), device.stream());
    source = converted.data();
  }
  PYDLBENCH_CUDA_CHECK(
      cudaMemcpyAsync(dense, source, bytes, cudaMemcpyDeviceToHost, device.stream()));
  device.synchronize();
}

Arena::Arena(std::shared_ptr<Device> device, std::map<std::string, HostTensor> inputs,
             std::map<std::string, UniformTensor> drawn)
    : device_(std::move(device)), inputs_(std::move(inputs)), drawn_(std::move(drawn)) {}

const HostTensor& Arena::input(const std::string& role) const {
  const auto found = inputs_.find(role);
  if (found == inputs_.end()) throw PrimitiveFailure("tensors", "no input named " + role);
  return found->second;
}

std::size_t Arena::elements(const std::string& role) const {
  const auto found = drawn_.find(role);
  return found == drawn_.end() ? input(role).elements
                               : static_cast<std::size_t>(found->second.elements);
}

std::shared_ptr<const Tensor> Arena::find(const TensorSpec& spec) const {
  for (const auto& tensor : tensors_) {
    if (tensor->spec.same_memory_as(spec)) return tensor;
  }
  return nullptr;
}

std::shared_ptr<const Tensor> Arena::plain(const std::string& role) {
  // One dimension, because the order of dense elements does not matter.
  const auto count = static_cast<std::int64_t>(elements(role));
  return uploaded({role, DataType::float32, {count}, {1}, Use::input});
}

std::shared_ptr<const Tensor> Arena::uploaded(const TensorSpec& plain) {
  if (auto found = find(plain)) return found;
  device_->make_current();
  auto tensor = std::make_shared<Tensor>(
      Tensor{plain, DeviceMemory(*device_, plain.bytes(), plain.role + ", as uploaded")});
  const auto drawn = drawn_.find(plain.role);
  if (drawn != drawn_.end()) {
    fill_uniform(drawn->second, static_cast<float*>(tensor->memory.data()), device_->stream());
  } else {
    PYDLBENCH_CUDA_CHECK(cudaMemcpyAsync(tensor->memory.data(), input(plain.role).data,
                                         plain.bytes(), cudaMemcpyHostToDevice, device_->stream()));
  }
  device_->synchronize();
  tensors_.push_back(tensor);
  return tensor;
}

std::shared_ptr<const Tensor> Arena::get(const TensorSpec& spec) {
  if (auto found = find(spec)) return found;
  const auto wanted = static_cast<std::size_t>(spec.elements());
  if (wanted != elements(spec.role)) {
    throw PrimitiveFailure("tensors",
                           "input " + spec.role + " has " + std::to_string(elements(spec.role)) +
                               " elements where the kernel reads " + std::to_string(wanted));
  }
  auto dense = plain(spec.role);
  if (spec.type == DataType::float32 && spec.strides == plain_strides(spec.dims)) return dense;
  auto tensor = std::make_shared<Tensor>(
      Tensor{spec, DeviceMemory(*device_, spec.bytes(), spec.role + " in a plan's layout")});
  to_storage(static_cast<const float*>(dense->memory.data()), spec, tensor->memory.data(),
             device_->stream());
  device_->synchronize();
  tensors_.push_back(tensor);
  return tensor;
}

std::size_t Arena::bytes() const {
  std::size_t total = 0;
  for (const auto& tensor : tensors_) total += tensor->memory.bytes();
  return total;
}

}  // namespace pydlbench::cuda
