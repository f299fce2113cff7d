// Steps of a chain together with their memory, started one after the other.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "cuda/convert.hpp"
#include "cuda/plan.hpp"
#include "cuda/sampling/sampler.hpp"

namespace pydlbench::cuda {

// A kernel, or a conversion from the first tensor into the second. Does not own memory.
struct Bound {
  std::shared_ptr<Plan> plan;  // null: a conversion
  std::vector<TensorSpec> tensors;
  std::vector<void*> pointers;

  void enqueue(void* workspace, CUstream_st* stream) const {
    if (plan) return plan->enqueue(pointers, workspace, stream);
    convert(tensors[0], pointers[0], tensors[1], pointers[1], stream);
  }
};

struct Sequence final : Work {
  void enqueue(std::size_t, CUstream_st* stream) override {
    for (const auto& one : bound) one.enqueue(workspace, stream);
  }
  std::size_t sets() const override { return 1; }
  std::size_t kernels() const override { return bound.size(); }

  std::vector<Bound> bound;
  void* workspace = nullptr;  // one for all plans
};

}  // namespace pydlbench::cuda
