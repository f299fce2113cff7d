// What the candidates of all ops are made of.
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

// What a tensor is to a pass.
enum class Use { input, output, updated };

// How our own loops see images: as rows of pixels per channel, or of channels per pixel.
struct Image {
  Index batch, channels, pixels;
  bool channels_last;
  Index elements() const { return batch * channels * pixels; }
};

// The problem in one layout, and the candidates so far.
struct PlanBuilder {
  const PointwiseProblem& problem;  // where there are no images, its op only
  Pass pass;
  memory::data_type type;
  bool thorough;
  std::vector<Candidate>& candidates;
  std::string variant{};  // of the candidates that are added next
  Tag tag = Tag::nchw;
  bool in_place = false;  // whether the result, of as many elements, overwrites the first source

  bool forward() const { return is_forward(pass); }
  bool training() const { return pass == Pass::forward_training; }
  // Throws std::invalid_argument where there is none.
  double number(const std::string& name) const;

  memory::dims dims(Index channels = 0) const;
  // Where channels and pixels lie the same way in both layouts, the one with fewer rows.
  Image image() const;

  // Images in the current layout (with all channels of the problem unless told), one float32 per
  // channel, and any vector. An index is only needed by primitives.
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
  // The same with plain stores, and with streaming ones where tensors may not fit into caches.
  void add_streaming(
      const std::string& name, const std::vector<Argument>& arguments, std::size_t workspace_bytes,
      const std::function<std::function<void(Pointers, void*)>(const Kernels&, bool)>& work);

 private:
  void add(Candidate candidate);
};

// An op whose result overwrites its first source has "-in-place" behind its name, which is taken
// off here. Returns whether it was there.
bool take_in_place(std::string& name);

// The type of a kind that has forward passes only, in fp32 and bf16. Throws Unsupported otherwise.
memory::data_type supported_type(const std::string& kind, Pass pass, Precision precision);

// Runs `plan`; what oneDNN has not implemented is left out.
void with_onednn(const std::string& primitive, const std::function<void()>& plan);

// Whether oneDNN has an algorithm for the activation of this name.
bool is_activation(const std::string& op);

// oneDNN's primitives for the builder's op and layout, and our own loops.
void plan_activation(PlanBuilder& builder);
void plan_onednn_maps(PlanBuilder& builder);
void plan_onednn_normalisations(PlanBuilder& builder);
void plan_elementwise(PlanBuilder& builder);
void plan_vectors(PlanBuilder& builder);
void plan_bias(PlanBuilder& builder);
void plan_batchnorm(PlanBuilder& builder);
void plan_lrn(PlanBuilder& builder);
void plan_concat(PlanBuilder& builder);
void plan_scale(PlanBuilder& builder);
void plan_softmax(PlanBuilder& builder);
void plan_rmsnorm(PlanBuilder& builder);

}  // namespace pydlbench::cpu::pointwise
