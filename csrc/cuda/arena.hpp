// The tensors of one layer in device memory, in every layout and number format that its plans need.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/host_tensor.hpp"
#include "cuda/runtime/device.hpp"
#include "cuda/tensor.hpp"

namespace pydlbench::cuda {

// A tensor with the device memory behind it.
struct Tensor {
  TensorSpec spec;
  DeviceMemory memory;
};

// A tensor in device memory as the caller's dense float32 array of spec.elements().
void download(const Device& device, const TensorSpec& spec, const void* source, float* dense);

// Uploads and converts each of the caller's inputs once and shares the result among plans, so that
// trying fifty of them costs one transfer over the bus. Outputs belong to the kernels.
class Arena {
 public:
  // `inputs` by role, dense and in the order of TensorSpec::dims, with values that the plans'
  // storage holds exactly (integers for int32 and int8).
  Arena(std::shared_ptr<Device> device, std::map<std::string, HostTensor> inputs);

  // The caller's input of the spec's role in the spec's layout; shared, so it must not be written.
  // Throws PrimitiveFailure where there is no such input or it has another number of elements.
  std::shared_ptr<const Tensor> get(const TensorSpec& spec);
  // The same as the caller's dense float32 array.
  std::shared_ptr<const Tensor> plain(const std::string& role);
  // Elements of the caller's input; throws as above.
  std::size_t elements(const std::string& role) const;

  // Frees everything that no kernel holds; it is uploaded again on the next request.
  void clear() { tensors_.clear(); }
  std::size_t bytes() const;
  const std::shared_ptr<Device>& device() const { return device_; }

 private:
  const HostTensor& input(const std::string& role) const;
  std::shared_ptr<const Tensor> find(const TensorSpec& spec) const;
  std::shared_ptr<const Tensor> uploaded(const TensorSpec& plain);

  std::shared_ptr<Device> device_;
  std::map<std::string, HostTensor> inputs_;
  std::vector<std::shared_ptr<const Tensor>> tensors_;
};

}  // namespace pydlbench::cuda
