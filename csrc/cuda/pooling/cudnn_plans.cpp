// cuDNN's pooling by its legacy API.
#include "cuda/pooling/cudnn_plans.hpp"

#include <cudnn.h>

#include <cstdint>
#include <string>
#include <utility>

#include "core/error.hpp"
#include "cuda/cudnn/library.hpp"
#include "cuda/libraries.hpp"
#include "cuda/pooling/tensors.hpp"

namespace pydlbench::cuda::pooling {

namespace {

template <typename Descriptor>
using Owned = std::unique_ptr<std::remove_pointer_t<Descriptor>, cudnnStatus_t (*)(Descriptor)>;
using PoolingDescriptor = Owned<cudnnPoolingDescriptor_t>;
using TensorDescriptor = Owned<cudnnTensorDescriptor_t>;

int narrow(std::int64_t size) { return static_cast<int>(size); }

PoolingDescriptor describe(const PoolProblem& p, cudnnPoolingMode_t mode) {
  cudnnPoolingDescriptor_t created = nullptr;
  cudnn::check(cudnn::api().create_pooling(&created), "cudnnCreatePoolingDescriptor");
  PoolingDescriptor descriptor{created, cudnn::api().destroy_pooling};
  cudnn::check(
      cudnn::api().set_pooling(created, mode, CUDNN_NOT_PROPAGATE_NAN, narrow(p.kernel[0]),
                               narrow(p.kernel[1]), narrow(p.pad_before[0]),
                               narrow(p.pad_before[1]), narrow(p.stride[0]), narrow(p.stride[1])),
      "cudnnSetPooling2dDescriptor");
  return descriptor;
}

TensorDescriptor describe(const TensorSpec& spec, bool channels_last) {
  cudnnTensorDescriptor_t created = nullptr;
  cudnn::check(cudnn::api().create_tensor(&created), "cudnnCreateTensorDescriptor");
  TensorDescriptor descriptor{created, cudnn::api().destroy_tensor};
  cudnn::check(
      cudnn::api().set_tensor(created, channels_last ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW,
                              cudnn::type_of(spec.type), narrow(spec.dims[0]), narrow(spec.dims[1]),
                              narrow(spec.dims[2]), narrow(spec.dims[3])),
      "cudnnSetTensor4dDescriptor");
  return descriptor;
}

// Tensors forward: src, dst. Backward: dst and src; for maxima preceded by the forward pass's
// source and its result, which is derived.
class CudnnPlan final : public Plan {
 public:
  CudnnPlan(const Device& device, const PoolProblem& problem, Pass pass, DataType type,
            bool channels_last, cudnnPoolingMode_t mode)
      : handle_(cudnn::handle_of(device)),
        forward_(is_forward(pass)),
        reads_forward_(!forward_ && problem.mode == PoolMode::max),
        facts_(pooling::facts(pass, channels_last)),
        pooling_(describe(problem, mode)),
        src_(describe(src_tensor(problem, type, channels_last, Use::input), channels_last)),
        dst_(describe(dst_tensor("dst", problem, type, channels_last, Use::input), channels_last)) {
    facts_.library = cudnn_version_text();
    facts_.algorithm = forward_ ? "cudnnPoolingForward" : "cudnnPoolingBackward";
    if (mode == CUDNN_POOLING_MAX_DETERMINISTIC) facts_.algorithm += ", deterministic";
    const auto src = [&](Use use) {
      tensors_.push_back(src_tensor(problem, type, channels_last, use));
    };
    const auto dst = [&](const char* role, Use use) {
      tensors_.push_back(dst_tensor(role, problem, type, channels_last, use));
    };
    if (forward_) {
      src(Use::input);
      dst("dst", Use::output);
      return;
    }
    if (reads_forward_) {
      facts_.notes.emplace_back("reads the forward pass's source and result");
      src(Use::input);
      dst("maxima", Use::derived);
    }
    dst("dst", Use::input);
    src(Use::output);
  }

  const PlanFacts& facts() const override { return facts_; }
  const std::vector<TensorSpec>& tensors() const override { return tensors_; }
  std::size_t workspace_bytes() const override { return 0; }
  void build() override {}  // the library's kernels are precompiled

  void derive(const std::vector<void*>& pointers, void*, CUstream_st* stream) override {
    if (reads_forward_) run_forward(pointers.at(0), pointers.at(1), stream);
  }

  void enqueue(const std::vector<void*>& pointers, void*, CUstream_st* stream) override {
    PYDLBENCH_CHECK(pointers.size() == tensors_.size(), "one pointer for each tensor");
    if (forward_) return run_forward(pointers[0], pointers[1], stream);
    if (reads_forward_) {
      return run_backward(pointers[0], pointers[1], pointers[2], pointers[3], stream);
    }
    // An average's gradient reads neither source nor result, but needs valid pointers.
    run_backward(pointers[1], pointers[0], pointers[0], pointers[1], stream);
  }

 private:
  void run_forward(const void* x, void* y, CUstream_st* stream) {
    constexpr float one = 1.0f, zero = 0.0f;
    handle_->use(stream);
    cudnn::check(cudnn::api().pooling_forward(handle_->get(), pooling_.get(), &one, src_.get(), x,
                                              &zero, dst_.get(), y),
                 "cudnnPoolingForward");
  }

  void run_backward(const void* x, const void* y, const void* dy, void* dx, CUstream_st* stream) {
    constexpr float one = 1.0f, zero = 0.0f;
    handle_->use(stream);
    cudnn::check(
        cudnn::api().pooling_backward(handle_->get(), pooling_.get(), &one, dst_.get(), y,
                                      dst_.get(), dy, src_.get(), x, &zero, src_.get(), dx),
        "cudnnPoolingBackward");
  }

  std::shared_ptr<cudnn::Handle> handle_;
  bool forward_, reads_forward_;
  PlanFacts facts_;
  PoolingDescriptor pooling_;
  TensorDescriptor src_, dst_;
  std::vector<TensorSpec> tensors_;
};

// The deterministic mode only matters for the gradient.
std::vector<cudnnPoolingMode_t> modes(PoolMode mode, bool forward) {
  switch (mode) {
    case PoolMode::max:
      if (forward) return {CUDNN_POOLING_MAX};
      return {CUDNN_POOLING_MAX_DETERMINISTIC, CUDNN_POOLING_MAX};
    case PoolMode::avg_include_padding:
      return {CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING};
    case PoolMode::avg_exclude_padding:
      return {CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING};
  }
  throw Unsupported("unknown pooling mode");
}

}  // namespace

std::vector<std::shared_ptr<Plan>> cudnn_plans(const Device& device, const PoolProblem& problem,
                                               Pass pass, DataType type, bool channels_last) {
  std::vector<std::shared_ptr<Plan>> plans;
  for (const auto mode : modes(problem.mode, is_forward(pass))) {
    plans.push_back(std::make_shared<CudnnPlan>(device, problem, pass, type, channels_last, mode));
  }
  return plans;
}

}  // namespace pydlbench::cuda::pooling
