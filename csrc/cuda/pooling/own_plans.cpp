#include "cuda/pooling/own_plans.hpp"

#include <string>
#include <utility>

#include "core/error.hpp"
#include "cuda/plan.hpp"
#include "cuda/pooling/kernels.hpp"
#include "cuda/pooling/tensors.hpp"

namespace pydlbench::cuda::pooling {

void run_forward(const Pool2dProblem& problem, const Choice& choice, const void* src, void* dst,
                 void* argmax, CUstream_st* stream) {
  switch (choice.type) {
    case DataType::float32:
      return forward_float32(problem, choice, src, dst, argmax, stream);
    case DataType::float16:
      return forward_float16(problem, choice, src, dst, argmax, stream);
    case DataType::bfloat16:
      return forward_bfloat16(problem, choice, src, dst, argmax, stream);
    default:
      throw Unsupported("pooling in this data type");
  }
}

void run_backward(const Pool2dProblem& problem, const Choice& choice, const void* dst,
                  const void* argmax, void* src, CUstream_st* stream) {
  switch (choice.type) {
    case DataType::float32:
      return backward_float32(problem, choice, dst, argmax, src, stream);
    case DataType::float16:
      return backward_float16(problem, choice, dst, argmax, src, stream);
    case DataType::bfloat16:
      return backward_bfloat16(problem, choice, dst, argmax, src, stream);
    default:
      throw Unsupported("pooling in this data type");
  }
}

namespace {

// Forward: src, dst and, for maxima in training, argmax. Backward: dst and src, for maxima with the
// forward pass's source and the argmax that follows from it before them.
class OwnPlan final : public Plan {
 public:
  OwnPlan(const Pool2dProblem& problem, Pass pass, const Choice& choice)
      : problem_(problem),
        choice_(choice),
        forward_(is_forward(pass)),
        stores_argmax_(problem.mode == PoolMode::max && pass != Pass::forward_inference),
        facts_(pooling::facts(pass, choice.channels_last)) {
    facts_.library = kOwnLibrary;
    facts_.algorithm = choice.method == Method::warp ? "window per warp"
                       : forward_                    ? "window per thread"
                                                     : "pixel per thread";
    if (choice.lanes > 1) facts_.algorithm += ", " + std::to_string(choice.lanes) + " channels";
    const auto argmax = argmax_type(problem);
    if (stores_argmax_) {
      facts_.notes.push_back(std::string(forward_ ? "writes" : "reads") + " the argmax, " +
                             std::to_string(bytes_of(argmax)) + " bytes each");
    }
    const bool last = choice.channels_last;
    const auto dst = [&](const char* role, DataType type, Use use) {
      tensors_.push_back(dst_tensor(role, problem, type, last, use));
    };
    const auto src = [&](Use use) {
      tensors_.push_back(src_tensor(problem, choice.type, last, use));
    };
    if (forward_) {
      src(Use::input);
      dst("dst", choice.type, Use::output);
      if (stores_argmax_) dst("argmax", argmax, Use::output);
      return;
    }
    if (stores_argmax_) {
      src(Use::input);
      dst("argmax", argmax, Use::derived);
    }
    dst("dst", choice.type, Use::input);
    src(Use::output);
  }

  const PlanFacts& facts() const override { return facts_; }
  const std::vector<TensorSpec>& tensors() const override { return tensors_; }
  std::size_t workspace_bytes() const override { return 0; }
  void build() override {}  // compiled with the module

  void derive(const std::vector<void*>& pointers, void*, CUstream_st* stream) override {
    if (forward_ || !stores_argmax_) return;
    run_forward(problem_, choice_, pointers.at(0), nullptr, pointers.at(1), stream);
  }

  void enqueue(const std::vector<void*>& pointers, void*, CUstream_st* stream) override {
    PYDLBENCH_CHECK(pointers.size() == tensors_.size(), "one pointer for each tensor");
    if (forward_) {
      run_forward(problem_, choice_, pointers[0], pointers[1],
                  stores_argmax_ ? pointers[2] : nullptr, stream);
    } else if (stores_argmax_) {
      run_backward(problem_, choice_, pointers[2], pointers[1], pointers[3], stream);
    } else {
      run_backward(problem_, choice_, pointers[0], nullptr, pointers[1], stream);
    }
  }

 private:
  Pool2dProblem problem_;
  Choice choice_;
  bool forward_, stores_argmax_;
  PlanFacts facts_;
  std::vector<TensorSpec> tensors_;
};

}  // namespace

std::vector<std::shared_ptr<Plan>> own_plans(const Pool2dProblem& problem, Pass pass, DataType type,
                                             bool channels_last) {
  std::vector<std::shared_ptr<Plan>> plans;
  for (const auto& choice : choices(problem, pass, type, channels_last)) {
    plans.push_back(std::make_shared<OwnPlan>(problem, pass, choice));
  }
  return plans;
}

}  // namespace pydlbench::cuda::pooling
