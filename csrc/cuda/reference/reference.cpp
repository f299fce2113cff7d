#include "cuda/reference/reference.hpp"

#include <cuda_runtime_api.h>

#include <utility>
#include <vector>

#include "core/error.hpp"
#include "cuda/reference/comparison.hpp"
#include "cuda/runtime/check.hpp"

namespace pydlbench::cuda {

namespace {

using Held = std::vector<std::shared_ptr<const Tensor>>;

// The caller's dense input, with a check of its size.
const float* operand(Arena& arena, const char* role, std::int64_t elements, Held& held) {
  auto tensor = arena.plain(role);
  PYDLBENCH_CHECK(tensor->spec.elements() == elements,
                  std::string(role) + " has not the elements of the problem");
  held.push_back(std::move(tensor));
  return static_cast<const float*>(held.back()->memory.data());
}

void check_fused(Pass pass, bool fused) {
  PYDLBENCH_CHECK(!fused || is_forward(pass), "only a forward pass has bias and ReLU behind it");
}

class Conv2dReference final : public Reference {
 public:
  Conv2dReference(Pass pass, const ConvProblem& problem, bool fused)
      : Reference(result_role(pass)), pass_(pass), problem_(problem), fused_(fused) {
    check_fused(pass, fused);
  }

 private:
  std::int64_t elements() const override { return result_elements(pass_, problem_); }
  std::int64_t terms() const override { return sum_terms(pass_, problem_, fused_); }
  Held enqueue(Arena& arena, const View& output, Deviation* records) const override {
    Held held;
    Conv2dCheck what{pass_, problem_, fused_, nullptr, nullptr, nullptr, nullptr, output};
    const auto input = [&](const char* role, Pass as_result_of) {
      return operand(arena, role, result_elements(as_result_of, problem_), held);
    };
    if (role() != "src") what.src = input("src", Pass::backward_data);
    if (role() != "weights") what.weights = input("weights", Pass::backward_weights);
    if (role() != "dst") what.dst = input("dst", Pass::forward_inference);
    if (fused_) what.bias = operand(arena, "bias", problem_.out_channels, held);
    check(what, records, arena.device()->stream());
    return held;
  }

  Pass pass_;
  ConvProblem problem_;
  bool fused_;
};

class GemmReference final : public Reference {
 public:
  GemmReference(Pass pass, const PlainGemm& problem, bool fused)
      : Reference(result_role(pass)), pass_(pass), problem_(problem), fused_(fused) {
    check_fused(pass, fused);
  }

 private:
  std::int64_t elements() const override { return result_elements(pass_, problem_); }
  std::int64_t terms() const override { return sum_terms(pass_, problem_, fused_); }
  Held enqueue(Arena& arena, const View& output, Deviation* records) const override {
    Held held;
    GemmCheck what{pass_, problem_, fused_, false, nullptr, nullptr, nullptr, nullptr, output};
    const auto input = [&](const char* role, Pass as_result_of) {
      return operand(arena, role, result_elements(as_result_of, problem_), held);
    };
    if (role() != "src") what.src = input("src", Pass::backward_data);
    if (role() != "weights") what.weights = input("weights", Pass::backward_weights);
    if (role() != "dst") what.dst = input("dst", Pass::forward_inference);
    if (fused_) {
      // One bias for the whole batch, or one per matrix.
      const auto size = static_cast<std::int64_t>(arena.elements("bias"));
      what.bias_per_matrix = size != problem_.n;
      const auto count = what.bias_per_matrix ? problem_.batch_count : 1;
      what.bias = operand(arena, "bias", problem_.n * count, held);
    }
    check(what, records, arena.device()->stream());
    return held;
  }

  Pass pass_;
  PlainGemm problem_;
  bool fused_;
};

class Pool2dReference final : public Reference {
 public:
  Pool2dReference(Pass pass, const PoolProblem& problem)
      : Reference(result_role(pass)), pass_(pass), problem_(problem) {
    PYDLBENCH_CHECK(pass != Pass::backward_weights, "pooling has no weights");
  }

 private:
  std::int64_t elements() const override { return result_elements(pass_, problem_); }
  std::int64_t terms() const override { return sum_terms(pass_, problem_); }
  Held enqueue(Arena& arena, const View& output, Deviation* records) const override {
    Held held;
    Pool2dCheck what{pass_, problem_, nullptr, nullptr, output};
    const bool backward = pass_ == Pass::backward_data;
    if (!backward || problem_.mode == PoolMode::max) {
      what.src = operand(arena, "src", result_elements(Pass::backward_data, problem_), held);
    }
    if (backward) {
      what.dst = operand(arena, "dst", result_elements(Pass::forward_inference, problem_), held);
    }
    check(what, records, arena.device()->stream());
    return held;
  }

  Pass pass_;
  PoolProblem problem_;
};

}  // namespace

Comparison Reference::compare(Arena& arena, const TensorSpec& output, const void* data) const {
  PYDLBENCH_CHECK(output.elements() == elements(),
                  "the result has not the elements of the problem");
  const auto& device = *arena.device();
  device.make_current();
  std::vector<Deviation> found(kRecords);
  const auto bytes = found.size() * sizeof(Deviation);
  const DeviceMemory records(device, bytes, "records of a comparison");
  // Only read by the kernels.
  const auto view = view_of(output, const_cast<void*>(data));
  const auto held = enqueue(arena, view, static_cast<Deviation*>(records.data()));
  PYDLBENCH_CUDA_CHECK(cudaMemcpyAsync(found.data(), records.data(), bytes, cudaMemcpyDeviceToHost,
                                       device.stream()));
  device.synchronize();
  return summary(found, output, terms());
}

std::shared_ptr<Reference> conv2d_reference(Pass pass, const ConvProblem& problem, bool fused) {
  return std::make_shared<Conv2dReference>(pass, problem, fused);
}

std::shared_ptr<Reference> gemm_reference(Pass pass, const PlainGemm& problem, bool fused) {
  return std::make_shared<GemmReference>(pass, problem, fused);
}

std::shared_ptr<Reference> pool2d_reference(Pass pass, const PoolProblem& problem) {
  return std::make_shared<Pool2dReference>(pass, problem);
}

}  // namespace pydlbench::cuda
