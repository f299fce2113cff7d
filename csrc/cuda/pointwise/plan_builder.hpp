// What the plans of all ops are made of.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cuda/pointwise/launchers.hpp"
#include "cuda/pointwise/plans.hpp"

namespace pydlbench::cuda::pointwise {

using Pointers = std::vector<void*>;  // in the order of the plan's tensors
using Enqueue = std::function<void(const Pointers&, void* workspace, CUstream_st*)>;

// A number per parameter; asking for one marks it as known.
class Parameters {
 public:
  explicit Parameters(const std::map<std::string, double>& numbers) : numbers_(numbers) {}
  double take(const std::string& name);
  void check_all_taken(const std::string& op) const;

 private:
  std::map<std::string, double> numbers_;
};

// The problem in one layout, and the plans for it so far.
struct PlanBuilder {
  PointwiseProblem problem;
  Pass pass;
  DataType type;
  PointwiseTarget target;
  Parameters parameters;
  std::string variant;  // of the plans that are added next
  bool channels_last = false;
  std::vector<std::shared_ptr<Plan>> plans;

  bool is_forward() const { return pydlbench::is_forward(pass); }
  // Of one pixel both layouts are the same bytes: rows of channels, which kernels read as such.
  Image image() const {
    const bool rows = channels_last || problem.height * problem.width == 1;
    return {problem.batch, problem.channels, problem.height, problem.width, rows};
  }
  std::int64_t count() const { return image().elements(); }

  // A map with a number of channels (by default all of the problem), in the current layout.
  TensorSpec map(const std::string& role, Use use, std::int64_t channels = 0) const;
  TensorSpec vector(const std::string& role, Use use, std::int64_t elements, DataType type) const;
  TensorSpec channel_floats(const std::string& role, Use use) const {
    return vector(role, use, problem.channels, DataType::float32);
  }

  void add(const std::string& kernel, std::vector<TensorSpec> tensors, std::size_t workspace_bytes,
           Enqueue enqueue);
};

struct NamedTiling {
  Tiling tiling;
  std::string name;
};
// Ways to share the elements of so many inputs out, without those that come to the same.
std::vector<NamedTiling> tilings(const PlanBuilder& builder, int inputs);

// The one for kernels of few plans: several vectors per thread where there are as many.
NamedTiling one_tiling(const PlanBuilder& builder, int inputs);

// In how many parts to cut every channel for a sum over it, so that the GPU is full.
std::int64_t channel_splits(const PlanBuilder& builder);
std::string splits_name(std::int64_t splits);

// One function per op and its passes; each adds its plans for the builder's layout.
void plan_relu(PlanBuilder& builder);
void plan_activation(PlanBuilder& builder);
void plan_add(PlanBuilder& builder);
void plan_dropout(PlanBuilder& builder);
void plan_bias(PlanBuilder& builder);
void plan_batchnorm(PlanBuilder& builder);
void plan_lrn(PlanBuilder& builder);
void plan_concat(PlanBuilder& builder);
void plan_softmax(PlanBuilder& builder);
void plan_row_softmax(PlanBuilder& builder);
void plan_l2(PlanBuilder& builder);
void plan_sgd(PlanBuilder& builder);
void plan_momentum(PlanBuilder& builder);

}  // namespace pydlbench::cuda::pointwise
