#include "cuda/pooling/plans.hpp"

#include <utility>

#include "core/error.hpp"
#include "cuda/libraries.hpp"
#include "cuda/mode.hpp"
#include "cuda/pooling/cudnn_plans.hpp"
#include "cuda/pooling/own_plans.hpp"
#include "cuda/runtime/device.hpp"

namespace pydlbench::cuda {

std::vector<std::shared_ptr<Plan>> pool2d_plans(const Device& device, const PoolProblem& problem,
                                                Pass pass, Mode mode, const std::string& layout) {
  if (pass == Pass::backward_weights) throw Unsupported("pooling has no weights");
  if (is_narrow(mode)) {
    throw Unsupported(std::string(name_of(mode)) + " is for sums of products, not for pooling");
  }
  require_capability(mode, device.facts().capability());
  const bool both = layout == "best" || layout == "any";
  if (!both && layout != "nchw" && layout != "nhwc") {
    throw Unsupported("pooling has no layout " + layout + "; there is: best, any, nchw, nhwc");
  }
  device.make_current();

  const auto type = storage(mode);
  std::vector<std::shared_ptr<Plan>> plans;
  const bool by_cudnn = loaded_cudnn() && pooling::beyond_cudnn(problem) == nullptr;
  for (const bool channels_last : {true, false}) {
    if (!both && channels_last != (layout == "nhwc")) continue;
    if (auto own = pooling::own_plan(problem, pass, type, channels_last, by_cudnn)) {
      plans.push_back(std::move(own));
    }
    if (!by_cudnn) continue;
    for (auto& plan : pooling::cudnn_plans(device, problem, pass, type, channels_last)) {
      plans.push_back(std::move(plan));
    }
  }
  return plans;
}

}  // namespace pydlbench::cuda
