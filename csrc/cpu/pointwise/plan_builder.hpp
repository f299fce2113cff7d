// Construction of the candidates of all ops.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <vector>

#include "cpu/plans.hpp"
#include "cpu/pointwise/kernels.hpp"

namespace pydlbench::cpu::pointwise {

using dnnl::memory;
using Pointers = void* const*;
using Tag = memory::format_tag;

// Use of a tensor in a pass.
enum class Use { input, output, updated };

// Images in our own loops: rows of pixels per channel, or of channels per pixel.
struct Image {
  Index batch, channels, pixels;
  bool channels_last;
  Index elements() const { return batch * channels * pixels; }
};

// The problem in one layout, and the candidates so far.
struct PlanBuilder {
  const PointwiseProblem& problem;  // only its op if there are no images
  Pass pass;
  memory::data_type type;
  bool thorough;
  std::vector<Candidate>& candidates;
  std::string variant{};  // of candidates added from now on
  Tag tag = Tag::nchw;
  bool in_place = false;  // whether the result overwrites the first source

  bool forward() const { return is_forward(pass); }
  bool training() const { return pass == Pass::forward_training; }
  // A parameter. Throws std::invalid_argument if it is missing.
  double number(const std::string& name) const;

  memory::dims dims(Index channels = 0) const;
  // If both layouts are the same, the one with fewer rows.
  Image image() const;

  // Images in the current layout (by default with all channels of the problem), one float32 per
  // channel, and any vector. Only primitives need an index.
  Argument map(const std::string& role, Use use, int index = kNoArgument, Index channels = 0) const;
  Argument channel_floats(const std::string& role, Use use, int index = kNoArgument) const;
  Argument vector(const std::string& role, Use use, memory::dims dims, memory::data_type element,
                  int index = kNoArgument) const;

  void add_primitive(const std::string& name, dnnl::primitive_desc_base primitive,
                     std::vector<Argument> arguments, std::shared_ptr<const OwnWork> behind = {},
                     const Invocation* forward = nullptr);
  // Calls `work(kernels)` for each instruction set.
  void add_own(const std::string& name, const std::vector<Argument>& arguments,
               std::size_t workspace_bytes,
               const std::function<std::function<void(Pointers, void*)>(const Kernels&)>& work);
  // As add_own(), with plain stores, and also with streaming stores if tensors may not fit into
  // caches.
  void add_streaming(
      const std::string& name, const std::vector<Argument>& arguments, std::size_t workspace_bytes,
      const std::function<std::function<void(Pointers, void*)>(const Kernels&, bool)>& work);

 private:
  void add(Candidate candidate);
};

// Removes the suffix "-in-place" of an op whose result overwrites its first source. Returns whether
// it had one.
bool take_in_place(std::string& name);

// The data type of a kind with only forward passes in fp32 and bf16. Throws Unsupported otherwise.
memory::data_type supported_type(const std::string& kind, Pass pass, Precision precision);

// Runs `plan`; ignores the error if oneDNN has no implementation.
void with_onednn(const std::string& primitive, const std::function<void()>& plan);

// Whether oneDNN has an algorithm for the activation of this name.
bool is_activation(const std::string& op);

// oneDNN's primitives for the builder's op and layout, and our own loops.
void plan_activation(PlanBuilder& builder);
void plan_onednn_maps(PlanBuilder& builder);
void plan_onednn_normalisations(PlanBuilder& builder);
void plan_elementwise(PlanBuilder& builder);
void plan_glu(PlanBuilder& builder);
void plan_vectors(PlanBuilder& builder);
void plan_bias(PlanBuilder& builder);
void plan_batchnorm(PlanBuilder& builder);
void plan_lrn(PlanBuilder& builder);
void plan_concat(PlanBuilder& builder);
void plan_scale(PlanBuilder& builder);
void plan_softmax(PlanBuilder& builder);
void plan_rmsnorm(PlanBuilder& builder);
void plan_groupnorm(PlanBuilder& builder);
void plan_cumsum(PlanBuilder& builder);

}  // namespace pydlbench::cpu::pointwise
