// Memory-bound layers: all implementations of oneDNN and our own loops, in all layouts.
// Arithmetic is float32 in both precisions, fp32 and bf16.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "cpu/plans.hpp"
#include "cpu/pointwise/plan_builder.hpp"

namespace pydlbench::cpu {

namespace {

using pointwise::PlanBuilder;
using Tag = dnnl::memory::format_tag;

struct Op {
  std::string_view name;
  void (*onednn)(PlanBuilder&);  // null if there is no primitive
  void (*own)(PlanBuilder&);     // null if there are no loops
};

// The planners of each operation, except activations that oneDNN supports.
const std::vector<Op>& ops() {
  namespace p = pointwise;
  static const std::vector<Op> all{
      {"bias", p::plan_onednn_maps, p::plan_bias},
      {"relu", p::plan_activation, p::plan_elementwise},
      {"scale", p::plan_onednn_maps, p::plan_scale},
      {"lrn", p::plan_onednn_normalisations, p::plan_lrn},
      {"batchnorm", p::plan_onednn_normalisations, p::plan_batchnorm},
      {"add", p::plan_onednn_maps, p::plan_elementwise},
      {"concat", p::plan_onednn_maps, p::plan_concat},
      {"softmax-xent", p::plan_onednn_normalisations, p::plan_softmax},
      {"softmax", p::plan_onednn_normalisations, nullptr},
      {"log-softmax", p::plan_onednn_normalisations, nullptr},
      {"layernorm", p::plan_onednn_normalisations, nullptr},
      {"rmsnorm", nullptr, p::plan_rmsnorm},
      {"groupnorm", nullptr, p::plan_groupnorm},
      {"prelu", p::plan_onednn_maps, nullptr},
      {"glu", nullptr, p::plan_glu},
      {"swiglu", nullptr, p::plan_elementwise},
      {"cumsum", nullptr, p::plan_cumsum},
      {"dropout", nullptr, p::plan_elementwise},
      {"l2", p::plan_onednn_maps, p::plan_vectors},
      {"sgd", p::plan_onednn_maps, p::plan_vectors},
      {"momentum", nullptr, p::plan_vectors},
  };
  return all;
}

Op find_op(const std::string& name) {
  std::string known;
  for (const Op& op : ops()) {
    if (op.name == name) return op;
    known += std::string(op.name) + ", ";
  }
  if (pointwise::is_activation(name)) return {name, pointwise::plan_activation, nullptr};
  throw Unsupported("no pointwise kernel named " + name + "; there is: " + known +
                    "and oneDNN's activations");
}

void check(const PointwiseProblem& p, Pass pass, Precision precision) {
  if (std::find(p.passes.begin(), p.passes.end(), name_of(pass)) == p.passes.end()) {
    throw Unsupported(p.op + " has no " + name_of(pass) + " pass");
  }
  if (precision == Precision::fp16) {
    throw Unsupported(p.op + " has no fp16 kernels on a CPU; there is: fp32, bf16");
  }
  PYDLBENCH_CHECK(p.batch > 0 && p.channels > 0 && p.height > 0 && p.width > 0,
                  "sizes are positive");
  PYDLBENCH_CHECK(p.op == "concat" ? p.sources.size() > 1 : p.sources.empty(),
                  "sources are those of a concatenation");
}

// If thorough, streaming stores are tried even for the smallest tensors.
std::vector<Candidate> pointwise_candidates(const Fields& fields, Pass pass, Precision precision,
                                            bool thorough) {
  auto problem = problem_of<PointwiseProblem>(fields);
  const bool in_place = pointwise::take_in_place(problem.op);
  const Op op = find_op(problem.op);
  check(problem, pass, precision);
  std::vector<Candidate> candidates;
  PlanBuilder builder{problem, pass, data_type(precision), thorough, candidates};
  builder.in_place = in_place;
  const auto in = [&](const char* variant, Tag tag, bool own) {
    builder.variant = variant;
    builder.tag = tag;
    if (op.onednn != nullptr) op.onednn(builder);
    if (own && op.own != nullptr) op.own(builder);
  };
  if (problem.in_one_order) {
    in("plain", Tag::nchw, true);
    return candidates;
  }
  in("nchw", Tag::nchw, true);
  in("nhwc", Tag::nhwc, true);
  // Blocks are padded with zeros, which our own loops would overwrite.
  in("blocked", Tag::nChw16c, false);
  in("blocked", Tag::nChw8c, false);
  return candidates;
}

const Kind pointwise_kind("pointwise", pointwise_candidates);

}  // namespace

}  // namespace pydlbench::cpu
