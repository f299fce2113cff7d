// Plans of cuDNN's engine configurations for a convolution, with or without separate padding, and
// the search for them.
#include "cuda/cudnn/plans.hpp"

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "cuda/cudnn/engines.hpp"
#include "cuda/cudnn/graph.hpp"
#include "cuda/cudnn/library.hpp"
#include "cuda/cudnn/operand_cache.hpp"
#include "cuda/cudnn/padding.hpp"
#include "cuda/cudnn/target.hpp"
#include "cuda/libraries.hpp"
#include "cuda/mode.hpp"
#include "cuda/plan.hpp"

namespace pydlbench::cuda::cudnn {

namespace {

class ConvolutionPlan : public Plan {
 public:
  // `convolution` is the caller's problem; with `padding`, the graph computes its inner problem.
  ConvolutionPlan(const Target& target, const Convolution& convolution,
                  std::optional<ExplicitPadding> padding,
                  std::shared_ptr<const OperationGraph> graph, Engine engine,
                  std::size_t workspace_limit);

  const PlanFacts& facts() const override { return facts_; }
  const std::vector<TensorSpec>& tensors() const override { return tensors_; }
  std::size_t workspace_bytes() const override { return scratch_bytes_ + library_bytes_; }
  void build() override;
  void enqueue(const std::vector<void*>& pointers, void* workspace, CUstream_st* stream) override;

 private:
  // cuDNN's variant pack of pointers, created once for each set of operands, so that launches are
  // fast.
  const Descriptor& pack(const std::vector<void*>& pointers, void* workspace);

  Target target_;
  Convolution convolution_;
  std::optional<ExplicitPadding> padding_;
  std::shared_ptr<const OperationGraph> graph_;
  Engine engine_;
  std::size_t workspace_limit_;
  PlanFacts facts_;
  std::vector<TensorSpec> tensors_;
  std::size_t scratch_bytes_ = 0;  // the padded source, before cuDNN's part of the workspace
  std::size_t library_bytes_ = 0;
  std::optional<Descriptor> plan_;
  OperandCache<Descriptor> packs_;
};

// Alignment of cuDNN's part of the workspace, equal to the allocator's alignment.
constexpr std::size_t kWorkspaceAlignment = 256;
// Largest number of cached packs, a few kilobytes each. Layers above 50 kB have fewer sets.
constexpr std::size_t kMaxPacks = 4096;

std::size_t scratch_bytes(const Convolution& convolution, const ExplicitPadding& padding) {
  const auto& inner = padding.inner;
  const auto elements = inner.batch * inner.in_channels * inner.in_size[0] * inner.in_size[1];
  const auto bytes = static_cast<std::size_t>(elements) * bytes_of(storage(convolution.mode));
  return (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
}

PlanFacts facts_of(const Convolution& convolution, const std::optional<ExplicitPadding>& padding,
                   const Engine& engine) {
  PlanFacts facts;
  facts.primitive = primitive_text(convolution);
  facts.algorithm = engine_text(engine.choice, transform(engine.numerical));
  if (convolution.compute == DataType::float16) facts.algorithm += " computing in float16";
  if (padding && convolution.pass == Pass::backward_data) {
    facts.algorithm += " + crop " + sides_text(*padding);
  } else if (padding) {
    facts.algorithm = "pad " + sides_text(*padding) + " + " + facts.algorithm;
  }
  facts.library = cudnn_version_text();
  facts.variant = convolution.layout == Layout::nchw ? "nchw" : "nhwc";
  facts.layout = layout_text(convolution);
  facts.accumulate = accumulator(convolution.compute, engine.numerical);
  const bool on_tensor_cores = has(engine.numerical, "TENSOR_CORE");
  if (on_tensor_cores || convolution.mode != Mode::int8) facts.tensor_cores = on_tensor_cores;
  facts.notes = engine.numerical;
  facts.notes.insert(facts.notes.end(), engine.behavior.begin(), engine.behavior.end());
  facts.runtime_compiled = has(engine.behavior, "RUNTIME_COMPILATION");
  return facts;
}

ConvolutionPlan::ConvolutionPlan(const Target& target, const Convolution& convolution,
                                 std::optional<ExplicitPadding> padding,
                                 std::shared_ptr<const OperationGraph> graph, Engine engine,
                                 std::size_t workspace_limit)
    : target_(target),
      convolution_(convolution),
      padding_(std::move(padding)),
      graph_(std::move(graph)),
      engine_(std::move(engine)),
      workspace_limit_(workspace_limit),
      facts_(facts_of(convolution_, padding_, engine_)),
      tensors_(convolution_tensors(convolution_)),
      scratch_bytes_(padding_ ? scratch_bytes(convolution_, *padding_) : 0),
      library_bytes_(engine_.workspace_bytes),
      packs_(kMaxPacks) {}

void ConvolutionPlan::build() {
  auto plan = execution_plan(*engine_.configuration, target_);
  library_bytes_ = static_cast<std::size_t>(plan.integer(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE));
  if (workspace_bytes() > workspace_limit_) {
    throw Unsupported(facts_.algorithm + " needs " + std::to_string(workspace_bytes()) +
                      " bytes of workspace; the limit is " + std::to_string(workspace_limit_));
  }
  plan_.emplace(std::move(plan));
}

const Descriptor& ConvolutionPlan::pack(const std::vector<void*>& pointers, void* workspace) {
  if (const auto* found = packs_.find(pointers, workspace)) return *found;
  auto* const library_workspace = static_cast<char*>(workspace) + scratch_bytes_;
  auto operands = pointers;
  if (padding_) operands[0] = workspace;  // the padded source, or its gradient
  Descriptor descriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, "cuDNN variant pack");
  descriptor.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, graph_->names)
      .set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, operands)
      .set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE,
           std::vector<void*>{library_bytes_ > 0 ? library_workspace : nullptr});
  descriptor.finalize();
  return packs_.add(pointers, workspace, std::move(descriptor));
}

void ConvolutionPlan::enqueue(const std::vector<void*>& pointers, void* workspace,
                              CUstream_st* stream) {
  PYDLBENCH_CHECK(plan_.has_value(), "enqueue before build");
  PYDLBENCH_CHECK(pointers.size() == tensors_.size(), "a pointer for each tensor");
  auto* const handle = target_.handle();
  if (handle == nullptr) throw Unsupported("plans made from device properties cannot be run");
  handle->use(stream);
  const bool channels_last = convolution_.layout == Layout::nhwc;
  const auto bytes = bytes_of(storage(convolution_.mode));
  const bool crops = padding_ && convolution_.pass == Pass::backward_data;
  if (padding_ && !crops) pad(workspace, pointers[0], *padding_, channels_last, bytes, stream);
  const auto& operands = pack(pointers, workspace);
  const auto status = api().execute(handle->get(), plan_->get(), operands.get());
  if (status != CUDNN_STATUS_SUCCESS) check(status, facts_.primitive + ", " + facts_.algorithm);
  if (crops) crop(pointers[0], workspace, *padding_, channels_last, bytes, stream);
}

std::vector<Layout> layouts_of(const std::string& name) {
  if (name == "nchw") return {Layout::nchw};
  if (name == "nhwc") return {Layout::nhwc};
  if (name == "best" || name == "any") return {Layout::nchw, Layout::nhwc};
  throw Unsupported("layout " + name + ": cuDNN convolutions come in best, any, nchw, nhwc");
}

// float32; without tensor cores also float16, which is twice as fast, and recorded as such.
std::vector<DataType> compute_types(Mode mode, bool fused) {
  if (mode == Mode::int8) return {DataType::int32};
  if (mode == Mode::fp16 && !fused) return {DataType::float32, DataType::float16};
  return {DataType::float32};
}

void check_request(const Target& target, Pass pass, Mode mode, const PlanRequest& request) {
  if (is_narrow(mode) && mode != Mode::int8) {
    throw Unsupported(std::string(name_of(mode)) +
                      " is for GEMM: cuDNN's convolutions are measured in the other modes");
  }
  if (mode == Mode::int8 && (request.fused || !is_forward(pass))) {
    throw Unsupported("int8 convolutions have a forward pass, with exact sums and nothing fused");
  }
  require_capability(mode, target.capability());
  if (request.fused && !is_forward(pass)) {
    throw Unsupported("convolution + bias + ReLU is fused in the forward pass only");
  }
}

// Number of rejected plans by reason, for the error if no plan remains.
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

std::vector<std::shared_ptr<Plan>> convolution_plans(const Target& target,
                                                     const ConvProblem& problem, Pass pass,
                                                     Mode mode, const PlanRequest& request) {
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
      dropped.count(error.what());  // this cuDNN does not support the graph
    }
  };
  Convolution convolution{problem, pass, Layout::nchw, mode, DataType::float32, request.fused};
  for (const auto layout : layouts_of(request.layout)) {
    for (const auto compute : compute_types(mode, request.fused)) {
      convolution.layout = layout;
      convolution.compute = compute;
      add(convolution, std::nullopt);
      if (problem.sides == 2 && is_asymmetric(problem)) {
        add(convolution, explicit_padding(problem));
      }
    }
  }
  if (plans.empty()) throw Unsupported(dropped.sentence(primitive_text(convolution), mode));
  return plans;
}

}  // namespace pydlbench::cuda::cudnn
