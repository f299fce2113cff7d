// The float64 reference on the device, for every element of a result.
#pragma once

#include <memory>
#include <string>

#include "core/problem.hpp"
#include "cuda/arena.hpp"
#include "cuda/plain.hpp"
#include "cuda/reference/comparison.hpp"

namespace pydlbench::cuda {

class Reference {
 public:
  virtual ~Reference() = default;
  Reference(const Reference&) = delete;
  Reference& operator=(const Reference&) = delete;

  // The role of the tensor that the pass writes: "dst", "src" or "weights".
  const std::string& role() const { return role_; }

  // Compares the result at `data`, in the layout of `output`, with the reference for the arena's
  // inputs. Throws PrimitiveFailure if an input is missing, std::invalid_argument if the number of
  // elements of a tensor does not match the problem.
  Comparison compare(Arena& arena, const TensorSpec& output, const void* data) const;

 protected:
  explicit Reference(std::string role) : role_(std::move(role)) {}
  // Number of elements of the result; length of its longest sum, 0 if it must be exact.
  virtual std::int64_t elements() const = 0;
  virtual std::int64_t terms() const = 0;
  // Enqueues the comparison and returns its inputs, which must be kept until it has run.
  virtual std::vector<std::shared_ptr<const Tensor>> enqueue(Arena& arena, const View& output,
                                                             Deviation* records) const = 0;

 private:
  std::string role_;
};

// `fused`: forward pass with bias and ReLU.
std::shared_ptr<Reference> conv2d_reference(Pass pass, const ConvProblem& problem, bool fused);
std::shared_ptr<Reference> gemm_reference(Pass pass, const PlainGemm& problem, bool fused);
std::shared_ptr<Reference> pool2d_reference(Pass pass, const PoolProblem& problem);

}  // namespace pydlbench::cuda
