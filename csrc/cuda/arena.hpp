// The tensors of a layer in device memory, in all layouts and number formats of its plans.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/host_tensor.hpp"
#include "cuda/runtime/device.hpp"
#include "cuda/tensor.hpp"
#include "cuda/uniform.hpp"

namespace pydlbench::cuda {

// A tensor with its device memory.
struct Tensor {
  TensorSpec spec;
  DeviceMemory memory;
};

// Copies a tensor from device memory to a dense float32 array of spec.elements().
void download(const Device& device, const TensorSpec& spec, const void* source, float* dense);

// Uploads and converts each of the caller's inputs once and shares the result among plans, so that
// fifty plans need only one transfer over the bus. Kernels own their outputs.
class Arena {
 public:
  // `inputs` by role, dense and in the order of TensorSpec::dims, with values that are exact in the
  // plans' storage format (integers for int32 and int8); those in `drawn` are made on the device.
  Arena(std::shared_ptr<Device> device, std::map<std::string, HostTensor> inputs,
        std::map<std::string, UniformTensor> drawn);

  // The input of the spec's role in the spec's layout; shared, so it must not be changed. Throws
  // PrimitiveFailure if there is no such input or it has another number of elements.
  std::shared_ptr<const Tensor> get(const TensorSpec& spec);
  // The input as a dense float32 array.
  std::shared_ptr<const Tensor> plain(const std::string& role);
  // Number of elements of the input; throws as above.
  std::size_t elements(const std::string& role) const;

  // Frees all tensors that no kernel uses; they are uploaded again on the next request.
  void clear() { tensors_.clear(); }
  std::size_t bytes() const;
  const std::shared_ptr<Device>& device() const { return device_; }

 private:
  const HostTensor& input(const std::string& role) const;
  std::shared_ptr<const Tensor> find(const TensorSpec& spec) const;
  std::shared_ptr<const Tensor> uploaded(const TensorSpec& plain);

  std::shared_ptr<Device> device_;
  std::map<std::string, HostTensor> inputs_;
  std::map<std::string, UniformTensor> drawn_;
  std::vector<std::shared_ptr<const Tensor>> tensors_;
};

}  // namespace pydlbench::cuda
