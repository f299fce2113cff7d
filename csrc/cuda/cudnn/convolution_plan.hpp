// One engine configuration of cuDNN on one convolution, with or without padding done apart.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "cuda/cudnn/convolution_graph.hpp"
#include "cuda/cudnn/engines.hpp"
#include "cuda/cudnn/operand_cache.hpp"
#include "cuda/cudnn/padding.hpp"
#include "cuda/cudnn/target.hpp"
#include "cuda/plan.hpp"

namespace pydlbench::cuda::cudnn {

class ConvolutionPlan : public Plan {
 public:
  // `convolution` is what the caller sees; with `padding`, the graph is that of its inner problem.
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
  // Pointers as cuDNN wants them. Made once for each set of operands, so that a launch costs no
  // more than it must.
  const Descriptor& pack(const std::vector<void*>& pointers, void* workspace);

  Target target_;
  Convolution convolution_;
  std::optional<ExplicitPadding> padding_;
  std::shared_ptr<const OperationGraph> graph_;
  Engine engine_;
  std::size_t workspace_limit_;
  PlanFacts facts_;
  std::vector<TensorSpec> tensors_;
  std::size_t scratch_bytes_ = 0;  // of the padded source, before cuDNN's part of the workspace
  std::size_t library_bytes_ = 0;
  std::optional<Descriptor> plan_;
  OperandCache<Descriptor> packs_;
};

}  // namespace pydlbench::cuda::cudnn
