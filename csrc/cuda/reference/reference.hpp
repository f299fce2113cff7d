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

  // Of the tensor that the pass writes: "dst", "src" or "weights".
  const std::string& role() const { return role_; }

  // Holds the result at `data`, laid out as `output` says, against the arena's inputs. Throws
  // PrimitiveFailure where an input is missing, std::invalid_argument where a tensor has another
  // number of elements than the problem.
  Comparison compare(Arena& arena, const TensorSpec& output, const void* data) const;

 protected:
  explicit Reference(std::string role) : role_(std::move(role)) {}
  // Elements of the result; length of its longest sum, 0 where it must be exact.
  virtual std::int64_t elements() const = 0;
  virtual std::int64_t terms() const = 0;
  // Enqueues the comparison and returns what it reads, to be kept until it has run.
  virtual std::vector<std::shared_ptr<const Tensor>> enqueue(Arena& arena, const View& output,
                                                             Deviation* records) const = 0;

 private:
  std::string role_;
};

// `fused`: with bias and ReLU, which the forward pass can have behind it.
std::shared_ptr<Reference> conv2d_reference(Pass pass, const ConvProblem& problem, bool fused);
std::shared_ptr<Reference> gemm_reference(Pass pass, const PlainGemm& problem, bool fused);
std::shared_ptr<Reference> pool2d_reference(Pass pass, const PoolProblem& problem);

}  // namespace pydlbench::cuda
