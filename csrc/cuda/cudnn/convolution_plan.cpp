#include "cuda/cudnn/convolution_plan.hpp"

#include <string>
#include <utility>

#include "core/error.hpp"
#include "cuda/cudnn/api.hpp"
#include "cuda/cudnn/shifted_copy.hpp"
#include "cuda/libraries/loader.hpp"

namespace pydlbench::cuda::cudnn {
namespace {

// What follows it in the workspace keeps the alignment that the allocator gave the whole.
constexpr std::size_t kWorkspaceAlignment = 256;
// Sets of operands whose packs are kept, a few kilobytes each. Layers above 50 kB have fewer sets.
constexpr std::size_t kMostPacks = 4096;

std::size_t scratch_bytes(const Convolution& convolution, const ExplicitPadding& padding) {
  const auto& inner = padding.inner;
  const auto elements = inner.batch * inner.in_channels * inner.in_height * inner.in_width;
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
  facts.layout = layout_text(convolution.layout);
  facts.accumulate = accumulator(convolution.compute, engine.numerical);
  facts.tensor_cores = has(engine.numerical, "TENSOR_CORE");
  facts.notes = engine.numerical;
  facts.notes.insert(facts.notes.end(), engine.behavior.begin(), engine.behavior.end());
  facts.runtime_compiled = has(engine.behavior, "RUNTIME_COMPILATION");
  return facts;
}

}  // namespace

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
      packs_(kMostPacks) {}

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

}  // namespace pydlbench::cuda::cudnn
