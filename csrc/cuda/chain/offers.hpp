// What a GPU offers to the planners of chains: the plans of its libraries and of our own kernels,
// and how long they take.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "cuda/chain/plan.hpp"
#include "cuda/mode.hpp"
#include "cuda/runtime/device.hpp"
#include "cuda/sampling/real_calls.hpp"

namespace pydlbench::cuda {

class DeviceOffers final : public Offers {
 public:
  // Throws Unsupported for modes that do not store float32: weights and their gradients have one
  // format in a chain.
  DeviceOffers(std::shared_ptr<Device> device, Mode mode, std::size_t workspace_limit);

  std::vector<std::shared_ptr<Plan>> plans(const Link& link, const std::string& layout) override;
  // The least of a few executions, between events, on memory of its own.
  double seconds(const std::shared_ptr<Plan>& plan,
                 const std::vector<Conversion>& conversions) override;

  const std::shared_ptr<Device>& device() const { return device_; }
  // What the chains that are planned with this have found out.
  Choices& choices() { return choices_; }

 private:
  std::shared_ptr<Device> device_;
  Mode mode_;
  std::size_t workspace_limit_;
  std::shared_ptr<RealCalls> calls_;
  Choices choices_;
};

}  // namespace pydlbench::cuda
