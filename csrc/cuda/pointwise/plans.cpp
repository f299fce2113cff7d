#include "cuda/pointwise/plans.hpp"

#include <string_view>
#include <utility>

#include "core/error.hpp"
#include "cuda/capability.hpp"
#include "cuda/pointwise/draft.hpp"

namespace pydlbench::cuda {

namespace {

using pointwise::Draft;

struct Op {
  std::string_view name;
  void (*draft)(Draft&);
  bool has_layouts;  // whether its kernels differ between NCHW and NHWC
  bool backward_data, backward_weights;
};

constexpr Op kOps[] = {
    {"bias", pointwise::draft_bias, true, false, true},
    {"relu", pointwise::draft_relu, false, true, false},
    {"lrn", pointwise::draft_lrn, true, true, false},
    {"batchnorm", pointwise::draft_batchnorm, true, true, false},
    {"add", pointwise::draft_add, false, false, false},
    {"concat", pointwise::draft_concat, true, true, false},
    {"softmax-xent", pointwise::draft_softmax, false, true, false},
    {"dropout", pointwise::draft_dropout, true, true, false},
    {"l2", pointwise::draft_l2, false, false, true},
    {"sgd", pointwise::draft_sgd, false, false, false},
    {"momentum", pointwise::draft_momentum, false, false, false},
};

const Op& find_op(const std::string& name) {
  std::string known;
  for (const Op& op : kOps) {
    if (op.name == name) return op;
    known += (known.empty() ? "" : ", ") + std::string(op.name);
  }
  throw Unsupported("no pointwise kernel named " + name + "; there is: " + known);
}

void check_pass(const Op& op, Pass pass) {
  if ((pass == Pass::backward_data && !op.backward_data) ||
      (pass == Pass::backward_weights && !op.backward_weights)) {
    const char* what = pass == Pass::backward_data ? "backward-data" : "backward-weights";
    throw Unsupported(std::string(op.name) + " has no " + what + " pass");
  }
}

void check_problem(const PointwiseProblem& p) {
  PYDLBENCH_CHECK(p.batch > 0 && p.channels > 0 && p.height > 0 && p.width > 0,
                  "sizes are positive");
  PYDLBENCH_CHECK(p.op == "concat" || p.sources.empty(), p.op + " has no sources");
}

// The layouts to draft: one where both are the same bytes in the same order for the kernel.
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
  check_pass(op, pass);
  if (mode == Mode::fp8_tc) {
    throw Unsupported("pointwise kernels have no fp8-tc: that mode is for matrix products");
  }
  require_capability(mode, target.capability);
  check_problem(problem);
  Draft draft{problem, pass, storage(mode), target, pointwise::Parameters(problem.numbers), "",
              false,   {}};
  for (auto& variant : layouts(op, problem, layout)) {
    draft.parameters = pointwise::Parameters(problem.numbers);
    draft.channels_last = variant == "nhwc";
    draft.variant = std::move(variant);
    op.draft(draft);
    draft.parameters.check_all_taken(problem.op);
  }
  return std::move(draft.plans);
}

}  // namespace pydlbench::cuda
