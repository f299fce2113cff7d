#include "cuda/cudnn/plans.hpp"

#include <map>
#include <optional>
#include <utility>

#include "core/error.hpp"
#include "cuda/capability.hpp"
#include "cuda/cudnn/convolution_plan.hpp"

namespace pydlbench::cuda::cudnn {
namespace {

std::vector<Layout> layouts_of(const std::string& name) {
  if (name == "nchw") return {Layout::nchw};
  if (name == "nhwc") return {Layout::nhwc};
  if (name == "best" || name == "any") return {Layout::nchw, Layout::nhwc};
  throw Unsupported("layout " + name + ": cuDNN convolutions come in best, any, nchw, nhwc");
}

// float32 everywhere; without tensor cores float16 sums are as fast again, and recorded as such.
std::vector<DataType> compute_types(Mode mode, bool fused) {
  if (mode == Mode::fp16 && !fused) return {DataType::float32, DataType::float16};
  return {DataType::float32};
}

void check_request(const Target& target, Pass pass, Mode mode, const PlanRequest& request) {
  if (mode == Mode::fp8_tc) {
    throw Unsupported("fp8-tc is for GEMM: cuDNN's convolutions are measured in the other modes");
  }
  require_capability(mode, target.capability());
  const bool forward = pass == Pass::forward_inference || pass == Pass::forward_training;
  if (request.fused && !forward) {
    throw Unsupported("convolution + bias + ReLU is fused in the forward pass only");
  }
}

// Why plans were left out, by reason, for the sentence that is said when none is left.
class Dropped {
 public:
  void count(const std::string& reason) { ++reasons_[reason]; }
  std::string sentence(const std::string& primitive, Mode mode) const {
    std::string text = "cuDNN has no " + std::string(name_of(mode)) + " plan for " + primitive;
    const char* separator = ": ";
    for (const auto& [reason, times] : reasons_) {
      text += separator + std::to_string(times) + " left out because " + reason;
      separator = ", ";
    }
    return text;
  }

 private:
  std::map<std::string, int> reasons_;
};

}  // namespace

std::vector<std::shared_ptr<Plan>> conv2d_plans(const Target& target, const Conv2dProblem& problem,
                                                Pass pass, Mode mode, const PlanRequest& request) {
  check_request(target, pass, mode, request);
  std::vector<std::shared_ptr<Plan>> plans;
  Dropped dropped;
  const Objection unwanted = [&](const Notes& notes) {
    const auto why = objection(mode, notes);
    if (why) dropped.count(*why);
    return why.has_value();
  };
  const auto add = [&](const Convolution& outer, const std::optional<ExplicitPadding>& padding) {
    auto inner = outer;
    if (padding) inner.problem = padding->inner;
    try {
      const auto graph = operation_graph(inner, target);
      for (auto& engine : engines(*graph, target, unwanted, request.sweep)) {
        auto plan = std::make_shared<ConvolutionPlan>(target, outer, padding, graph,
                                                      std::move(engine), request.workspace_limit);
        if (plan->workspace_bytes() > request.workspace_limit) {
          dropped.count("it needs more workspace than the limit");
        } else {
          plans.push_back(std::move(plan));
        }
      }
    } catch (const Unsupported& error) {
      dropped.count(error.what());
    } catch (const PrimitiveFailure& error) {
      dropped.count(error.what());  // a graph that this cuDNN refuses costs its own plans only
    }
  };
  Convolution convolution{problem, pass, Layout::nchw, mode, DataType::float32, request.fused};
  for (const auto layout : layouts_of(request.layout)) {
    for (const auto compute : compute_types(mode, request.fused)) {
      convolution.layout = layout;
      convolution.compute = compute;
      add(convolution, std::nullopt);
      if (is_asymmetric(problem)) add(convolution, explicit_padding(problem));
    }
  }
  if (plans.empty()) throw Unsupported(dropped.sentence(primitive_text(convolution), mode));
  return plans;
}

}  // namespace pydlbench::cuda::cudnn
