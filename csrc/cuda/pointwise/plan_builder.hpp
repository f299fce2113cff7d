// Construction of the plans of all ops.
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

// Parameters by name; reading one marks it as known.
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
  std::string variant;  // of plans added from now on
  bool channels_last = false;
  std::vector<std::shared_ptr<Plan>> plans;

  bool is_forward() const { return pydlbench::is_forward(pass); }
  // With one pixel both layouts are the same: rows of channels.
  Image image() const {
    const bool rows = channels_last || problem.height * problem.width == 1;
    return {problem.batch, problem.channels, problem.height, problem.width, rows};
  }
  std::int64_t count() const { return image().elements(); }

  // Images in the current layout, by default with all channels of the problem.
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
// Different tilings for a number of inputs, without duplicates.
std::vector<NamedTiling> tilings(const PlanBuilder& builder, int inputs);

// The tiling for kernels with one plan: several vectors per thread if there are enough.
NamedTiling one_tiling(const PlanBuilder& builder, int inputs);

// Number of parts of a channel's sum, so that all multiprocessors have work.
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
