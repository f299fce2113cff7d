#include "cuda/chain/offers.hpp"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "core/error.hpp"
#include "cuda/chain/sequence.hpp"
#include "cuda/plans.hpp"
#include "cuda/sampling/sampler.hpp"

namespace pydlbench::cuda {

namespace {

constexpr int kTries = 5;

// 0.0115 in float32: neither zero nor denormal.
constexpr unsigned char kNumber = 0x3c;

}  // namespace

DeviceOffers::DeviceOffers(std::shared_ptr<Device> device, Mode mode, std::size_t workspace_limit)
    : device_(std::move(device)), mode_(mode), workspace_limit_(workspace_limit) {
  if (storage(mode) != DataType::float32) {
    throw Unsupported("chains are in fp32 and tf32, not in " + std::string(name_of(mode)));
  }
  calls_ = shared_calls(*device_);
}

std::vector<std::shared_ptr<Plan>> DeviceOffers::plans(const Link& link,
                                                       const std::string& layout) {
  device_->make_current();
  // Off the tensor cores, cuDNN's own lists for float32 hold next to nothing.
  const bool sweep = !on_tensor_cores(mode_);
  return plans_of(device_.get(), link.fields, link.pass, mode_,
                  {layout, workspace_limit_, false, sweep, std::nullopt});
}

double DeviceOffers::seconds(const std::shared_ptr<Plan>& plan,
                             const std::vector<Conversion>& conversions) {
  device_->make_current();
  try {
    plan->prepare();
    std::vector<DeviceMemory> held;
    const auto bound = [&](std::shared_ptr<Plan> one, const std::vector<TensorSpec>& specs) {
      Bound made{std::move(one), specs, {}};
      for (const auto& spec : specs) {
        held.emplace_back(*device_, spec.bytes(), spec.role + " of a trial");
        // Whole numbers may be an index.
        const bool whole = spec.type == DataType::int32 || spec.type == DataType::int8;
        held.back().fill(whole ? 0 : kNumber, device_->stream());
        made.pointers.push_back(held.back().data());
      }
      return made;
    };
    Sequence sequence;
    for (const auto& [from, to] : conversions) {
      sequence.bound.push_back(bound(nullptr, {from, to}));
    }
    sequence.bound.push_back(bound(plan, plan->tensors()));
    const DeviceMemory workspace(*device_, plan->workspace_bytes(), "a plan's workspace");
    sequence.workspace = workspace.data();
    Sampler sampler(*calls_, sequence, CacheState::hot, Timing::events, {});
    const auto taken = sampler.sample({kTries, 1, 0}).seconds;
    return *std::min_element(taken.begin(), taken.end());
  } catch (const Unsupported&) {
    // found out when it is built, or when it is run
  } catch (const PrimitiveFailure&) {
    // After the device is lost every plan fails; this reports the cause.
    device_->synchronize();
  }
  return std::numeric_limits<double>::infinity();
}

}  // namespace pydlbench::cuda
