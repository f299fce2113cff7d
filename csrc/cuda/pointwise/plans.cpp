#include "cuda/pointwise/plans.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include "core/error.hpp"
#include "cuda/mode.hpp"
#include "cuda/pointwise/plan_builder.hpp"

namespace pydlbench::cuda {

namespace {

using pointwise::PlanBuilder;

struct Op {
  std::string_view name;
  void (*plan)(PlanBuilder&);
  bool has_layouts;  // whether its kernels differ between NCHW and NHWC
};

constexpr Op kOps[] = {
    {"bias", pointwise::plan_bias, true},
    {"relu", pointwise::plan_relu, false},
    {"relu6", pointwise::plan_activation, false},
    {"hardtanh", pointwise::plan_activation, false},
    {"hardsigmoid", pointwise::plan_activation, false},
    {"hardswish", pointwise::plan_activation, false},
    {"sigmoid", pointwise::plan_activation, false},
    {"tanh", pointwise::plan_activation, false},
    {"softplus", pointwise::plan_activation, false},
    {"elu", pointwise::plan_activation, false},
    {"silu", pointwise::plan_activation, false},
    {"mish", pointwise::plan_activation, false},
    {"gelu", pointwise::plan_activation, false},
    {"gelu-tanh", pointwise::plan_activation, false},
    {"lrn", pointwise::plan_lrn, true},
    {"batchnorm", pointwise::plan_batchnorm, true},
    {"add", pointwise::plan_add, false},
    {"concat", pointwise::plan_concat, true},
    {"softmax-xent", pointwise::plan_softmax, false},
    {"softmax", pointwise::plan_row_softmax, false},
    {"log-softmax", pointwise::plan_row_softmax, false},
    {"dropout", pointwise::plan_dropout, true},
    {"l2", pointwise::plan_l2, false},
    {"sgd", pointwise::plan_sgd, false},
    {"momentum", pointwise::plan_momentum, false},
};

const Op& find_op(const std::string& name) {
  std::string known;
  for (const Op& op : kOps) {
    if (op.name == name) return op;
    known += (known.empty() ? "" : ", ") + std::string(op.name);
  }
  throw Unsupported("no pointwise kernel named " + name + "; there is: " + known);
}

void check_pass(const PointwiseProblem& p, Pass pass) {
  if (std::find(p.passes.begin(), p.passes.end(), name_of(pass)) == p.passes.end()) {
    throw Unsupported(p.op + " has no " + name_of(pass) + " pass");
  }
}

void check_problem(const PointwiseProblem& p) {
  PYDLBENCH_CHECK(p.batch > 0 && p.channels > 0 && p.height > 0 && p.width > 0,
                  "sizes are positive");
  PYDLBENCH_CHECK(p.op == "concat" || p.sources.empty(), p.op + " has no sources");
}

// The layouts to plan: only one if both are the same for the kernel.
std::vector<std::string> layouts(const Op& op, const PointwiseProblem& p,
                                 const std::string& layout) {
  if (layout == "nchw" || layout == "nhwc") return {layout};
  if (layout != "best" && layout != "any") {
    throw Unsupported("layout " + layout +
                      ": no such layout on a GPU; there is: best, any, nchw, nhwc");
  }
  if (p.height * p.width == 1) return {"plain"};
  if (!op.has_layouts) return {"nchw"};
  return {"nchw", "nhwc"};
}

}  // namespace

std::vector<std::shared_ptr<Plan>> pointwise_plans(const PointwiseProblem& problem, Pass pass,
                                                   Mode mode, const std::string& layout,
                                                   const PointwiseTarget& target) {
  const Op& op = find_op(problem.op);
  check_pass(problem, pass);
  if (is_narrow(mode)) {
    throw Unsupported("pointwise kernels have no " + std::string(name_of(mode)) +
                      ": that mode is for sums of products");
  }
  require_capability(mode, target.capability);
  check_problem(problem);
  PlanBuilder builder{
      problem, pass, storage(mode), target, pointwise::Parameters(problem.numbers), "", false, {}};
  for (auto& variant : layouts(op, problem, layout)) {
    builder.parameters = pointwise::Parameters(problem.numbers);
    builder.channels_last = variant == "nhwc";
    builder.variant = std::move(variant);
    op.plan(builder);
    builder.parameters.check_all_taken(problem.op);
  }
  return std::move(builder.plans);
}

}  // namespace pydlbench::cuda
