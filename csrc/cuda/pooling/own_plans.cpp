#include "cuda/pooling/own_plans.hpp"

#include <cstdint>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "cuda/plan.hpp"
#include "cuda/pooling/kernels.hpp"
#include "cuda/pooling/tensors.hpp"

namespace pydlbench::cuda::pooling {

namespace {

constexpr std::int64_t kPlaces = 256;

bool has_argmax(const PoolProblem& problem, Pass pass) {
  return problem.mode == PoolMode::max && pass != Pass::forward_inference;
}

// Tensors forward: src, dst and, for maxima in training, argmax. Backward: dst and src, for maxima
// preceded by the forward pass's source and the derived argmax.
class OwnPlan final : public Plan {
 public:
  OwnPlan(const PoolProblem& problem, Pass pass, DataType type, bool channels_last)
      : problem_(problem),
        type_(type),
        channels_last_(channels_last),
        forward_(is_forward(pass)),
        argmax_(has_argmax(problem, pass)),
        facts_(pooling::facts(pass, channels_last)) {
    facts_.library = kOwnLibrary;
    facts_.algorithm = forward_ ? "window per thread" : "pixel per thread";
    if (argmax_) facts_.notes.emplace_back(forward_ ? "writes the argmax" : "reads the argmax");
    const auto dst = [&](const char* role, DataType stored, Use use) {
      tensors_.push_back(dst_tensor(role, problem, stored, channels_last, use));
    };
    const auto src = [&](Use use) {
      tensors_.push_back(src_tensor(problem, type, channels_last, use));
    };
    if (forward_) {
      src(Use::input);
      dst("dst", type, Use::output);
      if (argmax_) dst("argmax", DataType::int8, Use::output);
      return;
    }
    if (argmax_) {
      src(Use::input);
      dst("argmax", DataType::int8, Use::derived);
    }
    dst("dst", type, Use::input);
    src(Use::output);
  }

  const PlanFacts& facts() const override { return facts_; }
  const std::vector<TensorSpec>& tensors() const override { return tensors_; }
  std::size_t workspace_bytes() const override { return 0; }
  void build() override {}  // compiled with the module

  void derive(const std::vector<void*>& pointers, void*, CUstream_st* stream) override {
    if (!forward_ && argmax_) forward(pointers.at(0), nullptr, pointers.at(1), stream);
  }

  void enqueue(const std::vector<void*>& pointers, void*, CUstream_st* stream) override {
    PYDLBENCH_CHECK(pointers.size() == tensors_.size(), "one pointer for each tensor");
    if (forward_) {
      forward(pointers[0], pointers[1], argmax_ ? pointers[2] : nullptr, stream);
    } else if (argmax_) {
      backward(pointers[2], pointers[1], pointers[3], stream);
    } else {
      backward(pointers[0], nullptr, pointers[1], stream);
    }
  }

 private:
  void forward(const void* src, void* dst, void* argmax, CUstream_st* stream) {
    run_forward(problem_, type_, channels_last_, src, dst, static_cast<std::uint8_t*>(argmax),
                stream);
  }
  void backward(const void* dst, const void* argmax, void* src, CUstream_st* stream) {
    run_backward(problem_, type_, channels_last_, dst, static_cast<const std::uint8_t*>(argmax),
                 src, stream);
  }

  PoolProblem problem_;
  DataType type_;
  bool channels_last_, forward_, argmax_;
  PlanFacts facts_;
  std::vector<TensorSpec> tensors_;
};

}  // namespace

std::shared_ptr<Plan> own_plan(const PoolProblem& problem, Pass pass, DataType type,
                               bool channels_last, bool by_cudnn) {
  const bool argmax = has_argmax(problem, pass);
  const bool fits = !argmax || problem.kernel[0] * problem.kernel[1] <= kPlaces;
  if (by_cudnn && (!argmax || !fits)) return nullptr;
  if (!fits) {
    throw Unsupported("maxima of windows of more than " + std::to_string(kPlaces) +
                      " elements in training, where cuDNN does not compute them");
  }
  return std::make_shared<OwnPlan>(problem, pass, type, channels_last);
}

}  // namespace pydlbench::cuda::pooling
