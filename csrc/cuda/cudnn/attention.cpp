#include "cuda/cudnn/attention.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "core/error.hpp"
#include "cuda/cudnn/builder.hpp"
#include "cuda/cudnn/engines.hpp"
#include "cuda/cudnn/graph.hpp"
#include "cuda/cudnn/library.hpp"
#include "cuda/cudnn/operand_cache.hpp"
#include "cuda/libraries.hpp"

namespace pydlbench::cuda::cudnn {

namespace {

// Identifiers of tensors, and their places in tensors_of().
enum Part : std::size_t {
  query,
  key,
  value,
  result,
  gradient,
  d_query,
  d_key,
  d_value,
  stats,
  again
};
constexpr std::int64_t kScale = 100, kRight = 101, kMasked = 102, kScores = 103,
                       kMaskedScores = 104;
constexpr std::size_t kMaxPacks = 4096;

// Numbers on the host that the graph reads when it is run.
struct Numbers {
  float scale;
  std::int32_t right = 0;  // a query attends to the keys up to its own position
  float masked = -INFINITY;
};

std::vector<TensorSpec> tensors_of(const AttentionProblem& p, Pass pass, Mode mode) {
  const auto type = storage(mode);
  const auto tensor = [&](const char* role, std::int64_t heads, std::int64_t rows,
                          std::int64_t columns, Use use, DataType kind) {
    std::vector<std::int64_t> dims{p.batch, heads, rows, columns};
    auto strides = plain_strides(dims);
    return TensorSpec{role, kind, std::move(dims), std::move(strides), use};
  };
  const auto queries = [&](Use use) {
    return tensor("query", p.heads, p.queries, p.size, use, type);
  };
  const auto keys = [&](Use use) { return tensor("key", p.kv_heads, p.keys, p.size, use, type); };
  const auto values = [&](Use use) {
    return tensor("value", p.kv_heads, p.keys, p.value_size, use, type);
  };
  const auto results = [&](const char* role, Use use) {
    return tensor(role, p.heads, p.queries, p.value_size, use, type);
  };
  std::vector<TensorSpec> tensors{queries(Use::input), keys(Use::input), values(Use::input)};
  if (is_forward(pass)) {
    tensors.push_back(results("dst", Use::output));
    return tensors;
  }
  tensors.push_back(results("result", Use::input));
  tensors.push_back(results("dst", Use::input));
  tensors.push_back(queries(Use::output));
  tensors.push_back(keys(Use::output));
  tensors.push_back(values(Use::output));
  tensors.push_back(tensor("stats", p.heads, p.queries, 1, Use::derived, DataType::float32));
  tensors.push_back(results("forward result", Use::derived));
  return tensors;
}

#if CUDNN_VERSION >= 92100
// The attributes of the operation besides its tensors.
struct Attributes {
  cudnnBackendAttributeName_t scale, subgraph, input, output;
};

// Masks the scores of keys behind a query's own position.
void mask(Builder& builder, const Target& target, const AttentionProblem& p, Descriptor& operation,
          const Attributes& names) {
  const auto scores = [&](std::int64_t name) -> const Descriptor& {
    std::vector<std::int64_t> dims{p.batch, p.heads, p.queries, p.keys};
    auto strides = plain_strides(dims);
    return builder.tensor(
        name, {"scores", DataType::float32, std::move(dims), std::move(strides), Use::derived},
        true);
  };
  auto& band = builder.make(CUDNN_BACKEND_OPERATION_DIAGONAL_BAND_MASK_DESCRIPTOR, "causal mask");
  band.set(CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_XDESC, scores(kScores))
      .set(CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_SHIFT_RIGHT_BOUND_DESC,
           builder.scalar(kRight, DataType::int32, "bound of the mask"))
      .set(CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_BDESC,
           builder.scalar(kMasked, DataType::float32, "masked score"))
      .set(CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_YDESC, scores(kMaskedScores))
      .set_enum(CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_COMPARISON_MODE, CUDNN_TYPE_POINTWISE_MODE,
                CUDNN_POINTWISE_CMP_GE);
  band.finalize();
  auto& graph = builder.make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, "graph of the mask");
  target.tell_graph(graph);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, std::vector<const Descriptor*>{&band});
  graph.finalize();
  operation.set(names.subgraph, graph)
      .set(names.input, std::vector<std::int64_t>{kScores})
      .set(names.output, std::vector<std::int64_t>{kMaskedScores});
}

// The graph of one operation; `parts` are its tensors, as cuDNN's attributes name them.
std::shared_ptr<const OperationGraph> graph_of(
    const Target& target, const AttentionProblem& p, const std::vector<TensorSpec>& tensors,
    cudnnBackendDescriptorType_t kind,
    const std::vector<std::pair<cudnnBackendAttributeName_t, std::size_t>>& parts,
    const Attributes& names) {
  Builder builder(24);
  std::vector<std::int64_t> identifiers;
  std::vector<const Descriptor*> made;
  for (const auto& [attribute, part] : parts) {
    (void)attribute;
    identifiers.push_back(static_cast<std::int64_t>(part) + 1);
    made.push_back(&builder.tensor(identifiers.back(), tensors.at(part)));
  }
  auto& operation = builder.make(kind, "attention");
  for (std::size_t i = 0; i < parts.size(); ++i) operation.set(parts[i].first, *made[i]);
  operation.set(names.scale, builder.scalar(kScale, DataType::float32, "scale"));
  identifiers.push_back(kScale);
  if (p.causal) {
    mask(builder, target, p, operation, names);
    identifiers.insert(identifiers.end(), {kRight, kMasked});
  }
  operation.finalize();
  Descriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, "cuDNN operation graph");
  target.tell_graph(graph);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, std::vector<const Descriptor*>{&operation});
  graph.finalize();
  return std::make_shared<const OperationGraph>(
      OperationGraph{std::move(graph), std::move(builder.parts), std::move(identifiers)});
}

// With `statistics`, the forward pass of a gradient, which writes its own result.
std::shared_ptr<const OperationGraph> forward_graph(const Target& target, const AttentionProblem& p,
                                                    const std::vector<TensorSpec>& tensors,
                                                    bool statistics) {
  std::vector<std::pair<cudnnBackendAttributeName_t, std::size_t>> parts{
      {CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC, query},
      {CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC, key},
      {CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC, value},
      {CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC, statistics ? again : result}};
  if (statistics) parts.emplace_back(CUDNN_ATTR_OPERATION_SDPA_FWD_STATSDESC, stats);
  return graph_of(target, p, tensors, CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR, parts,
                  {CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC, CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH,
                   CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_INPUT_UID,
                   CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_OUTPUT_UID});
}

std::shared_ptr<const OperationGraph> backward_graph(const Target& target,
                                                     const AttentionProblem& p,
                                                     const std::vector<TensorSpec>& tensors) {
  return graph_of(target, p, tensors, CUDNN_BACKEND_OPERATION_SDPA_BWD_DESCRIPTOR,
                  {{CUDNN_ATTR_OPERATION_SDPA_BWD_QDESC, query},
                   {CUDNN_ATTR_OPERATION_SDPA_BWD_KDESC, key},
                   {CUDNN_ATTR_OPERATION_SDPA_BWD_VDESC, value},
                   {CUDNN_ATTR_OPERATION_SDPA_BWD_ODESC, result},
                   {CUDNN_ATTR_OPERATION_SDPA_BWD_DODDESC, gradient},
                   {CUDNN_ATTR_OPERATION_SDPA_BWD_DQDESC, d_query},
                   {CUDNN_ATTR_OPERATION_SDPA_BWD_DKDESC, d_key},
                   {CUDNN_ATTR_OPERATION_SDPA_BWD_DVDESC, d_value},
                   {CUDNN_ATTR_OPERATION_SDPA_BWD_STATSDESC, stats}},
                  {CUDNN_ATTR_OPERATION_SDPA_BWD_SCALEDESC, CUDNN_ATTR_OPERATION_SDPA_BWD_SUBGRAPH,
                   CUDNN_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_INPUT_UID,
                   CUDNN_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_OUTPUT_UID});
}
#endif

// A graph with an engine, which runs on the tensors that its identifiers name.
class Step {
 public:
  Step(std::shared_ptr<const OperationGraph> graph, Engine engine)
      : graph_(std::move(graph)), engine_(std::move(engine)), packs_(kMaxPacks) {}

  const Engine& engine() const { return engine_; }
  std::size_t workspace_bytes() const { return engine_.workspace_bytes; }

  void build(const Target& target) {
    auto plan = execution_plan(*engine_.configuration, target);
    engine_.workspace_bytes =
        static_cast<std::size_t>(plan.integer(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE));
    plan_.emplace(std::move(plan));
  }

  void run(const Target& target, const std::vector<void*>& pointers, void* workspace,
           Numbers& numbers, CUstream_st* stream, const std::string& what) {
    PYDLBENCH_CHECK(plan_.has_value(), "run before build");
    auto* const handle = target.handle();
    if (handle == nullptr) throw Unsupported("plans made from device properties cannot be run");
    handle->use(stream);
    const auto* pack = packs_.find(pointers, workspace);
    if (pack == nullptr) {
      pack = &packs_.add(pointers, workspace, packed(pointers, workspace, numbers));
    }
    check(api().execute(handle->get(), plan_->get(), pack->get()), what);
  }

 private:
  Descriptor packed(const std::vector<void*>& pointers, void* workspace, Numbers& numbers) const {
    std::vector<void*> operands;
    for (const auto name : graph_->names) {
      operands.push_back(name == kScale    ? static_cast<void*>(&numbers.scale)
                         : name == kRight  ? static_cast<void*>(&numbers.right)
                         : name == kMasked ? static_cast<void*>(&numbers.masked)
                                           : pointers.at(static_cast<std::size_t>(name - 1)));
    }
    Descriptor descriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, "cuDNN variant pack");
    descriptor.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, graph_->names)
        .set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, operands)
        .set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE,
             std::vector<void*>{workspace_bytes() > 0 ? workspace : nullptr});
    descriptor.finalize();
    return descriptor;
  }

  std::shared_ptr<const OperationGraph> graph_;
  Engine engine_;
  std::optional<Descriptor> plan_;
  OperandCache<Descriptor> packs_;
};

class AttentionPlan final : public Plan {
 public:
  AttentionPlan(const Target& target, const AttentionProblem& problem, Pass pass,
                std::vector<TensorSpec> tensors, Step step, std::shared_ptr<Step> forward,
                std::size_t workspace_limit)
      : target_(target),
        tensors_(std::move(tensors)),
        step_(std::move(step)),
        forward_(std::move(forward)),
        workspace_limit_(workspace_limit),
        numbers_{1.0f / std::sqrt(static_cast<float>(problem.size))} {
    const auto& engine = step_.engine();
    facts_ = {is_forward(pass) ? "attention forward" : "attention backward",
              engine_text(engine.choice, ""),
              cudnn_version_text(),
              "plain",
              "all bhsd",
              "float32",
              std::nullopt,
              engine.numerical,
              has(engine.behavior, "RUNTIME_COMPILATION")};
    if (has(engine.numerical, "TENSOR_CORE")) facts_.tensor_cores = true;
    facts_.notes.insert(facts_.notes.end(), engine.behavior.begin(), engine.behavior.end());
  }

  const PlanFacts& facts() const override { return facts_; }
  const std::vector<TensorSpec>& tensors() const override { return tensors_; }
  std::size_t workspace_bytes() const override {
    return std::max(step_.workspace_bytes(), forward_ ? forward_->workspace_bytes() : 0);
  }

  void build() override {
    step_.build(target_);
    if (forward_) forward_->build(target_);
    if (workspace_bytes() > workspace_limit_) {
      throw Unsupported(facts_.algorithm + " needs " + std::to_string(workspace_bytes()) +
                        " bytes of workspace; the limit is " + std::to_string(workspace_limit_));
    }
  }

  void derive(const std::vector<void*>& pointers, void* workspace, CUstream_st* stream) override {
    if (forward_)
      forward_->run(target_, pointers, workspace, numbers_, stream, "attention forward");
  }

  void enqueue(const std::vector<void*>& pointers, void* workspace, CUstream_st* stream) override {
    PYDLBENCH_CHECK(pointers.size() == tensors_.size(), "a pointer for each tensor");
    step_.run(target_, pointers, workspace, numbers_, stream, facts_.primitive);
  }

 private:
  Target target_;
  std::vector<TensorSpec> tensors_;
  Step step_;
  std::shared_ptr<Step> forward_;  // what a gradient needs beforehand
  std::size_t workspace_limit_;
  Numbers numbers_;
  PlanFacts facts_;
};

}  // namespace

std::vector<std::shared_ptr<Plan>> attention_plans(const Target& target,
                                                   const AttentionProblem& problem, Pass pass,
                                                   Mode mode, std::size_t workspace_limit) {
  if (mode != Mode::fp16_tc && mode != Mode::bf16_tc) {
    throw Unsupported(std::string("cuDNN's attention has fp16-tc and bf16-tc, not ") +
                      name_of(mode));
  }
  require_capability(mode, target.capability());
#if CUDNN_VERSION >= 92100
  const auto tensors = tensors_of(problem, pass, mode);
  const Objection none = [](const Notes&) { return false; };
  std::shared_ptr<Step> before;
  std::shared_ptr<const OperationGraph> graph;
  if (is_forward(pass)) {
    graph = forward_graph(target, problem, tensors, false);
  } else {
    const auto forward = forward_graph(target, problem, tensors, true);
    auto found = engines(*forward, target, none, false);
    if (found.empty()) throw Unsupported("cuDNN has no forward pass of this attention");
    before = std::make_shared<Step>(forward, std::move(found.front()));
    graph = backward_graph(target, problem, tensors);
  }
  std::vector<std::shared_ptr<Plan>> plans;
  for (auto& engine : engines(*graph, target, none, false)) {
    auto plan = std::make_shared<AttentionPlan>(
        target, problem, pass, tensors, Step(graph, std::move(engine)), before, workspace_limit);
    if (plan->workspace_bytes() <= workspace_limit) plans.push_back(std::move(plan));
  }
  if (plans.empty()) throw Unsupported("cuDNN has no plan for this attention");
  return plans;
#else
  (void)problem, (void)pass, (void)workspace_limit;
  throw Unsupported("attention needs a build with the headers of cuDNN 9.21 or later");
#endif
}

}  // namespace pydlbench::cuda::cudnn
