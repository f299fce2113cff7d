// Memory-bound layers: every way in which oneDNN or loops of our own compute one, in all layouts.
// Arithmetic is float32 in both precisions, fp32 and bf16.
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
  void (*onednn)(PlanBuilder&);  // null where it has nothing
  void (*own)(PlanBuilder&);     // null where oneDNN's will do
  bool maps;                     // images; else what has only one layout
  bool backward_data, backward_weights;
  std::vector<std::string> numbers;
};

const std::vector<Op>& ops() {
  namespace p = pointwise;
  static const std::vector<Op> all{
      {"bias", p::plan_onednn_maps, p::plan_bias, true, false, true, {}},
      {"relu", p::plan_onednn_maps, p::plan_elementwise, true, true, false, {}},
      {"relu6", p::plan_onednn_maps, nullptr, true, true, false, {}},
      {"hardswish", p::plan_onednn_maps, nullptr, true, true, false, {}},
      {"hardsigmoid", p::plan_onednn_maps, nullptr, true, true, false, {}},
      {"sigmoid", p::plan_onednn_maps, nullptr, true, true, false, {}},
      {"tanh", p::plan_onednn_maps, nullptr, true, true, false, {}},
      {"softplus", p::plan_onednn_maps, nullptr, true, true, false, {}},
      {"elu", p::plan_onednn_maps, nullptr, true, true, false, {}},
      {"silu", p::plan_onednn_maps, nullptr, true, true, false, {}},
      {"mish", p::plan_onednn_maps, nullptr, true, true, false, {}},
      {"gelu", p::plan_onednn_maps, nullptr, true, true, false, {}},
      {"gelu-tanh", p::plan_onednn_maps, nullptr, true, true, false, {}},
      {"scale", p::plan_onednn_maps, p::plan_scale, true, true, false, {}},
      {"lrn",
       p::plan_onednn_normalisations,
       p::plan_lrn,
       true,
       true,
       false,
       {"local_size", "alpha", "beta", "k"}},
      {"batchnorm",
       p::plan_onednn_normalisations,
       p::plan_batchnorm,
       true,
       true,
       false,
       {"epsilon", "momentum"}},
      {"add", p::plan_onednn_maps, p::plan_elementwise, true, false, false, {}},
      {"concat", p::plan_onednn_maps, p::plan_concat, true, true, false, {}},
      {"softmax-xent", p::plan_onednn_normalisations, p::plan_softmax, false, true, false, {}},
      {"softmax", p::plan_onednn_normalisations, nullptr, false, true, false, {}},
      {"log-softmax", p::plan_onednn_normalisations, nullptr, false, true, false, {}},
      {"layernorm", p::plan_onednn_normalisations, nullptr, false, true, false, {"epsilon"}},
      {"dropout", nullptr, p::plan_elementwise, true, true, false, {"keep"}},
      {"l2", p::plan_onednn_maps, p::plan_vectors, false, false, true, {"decay"}},
      {"sgd", p::plan_onednn_maps, p::plan_vectors, false, false, false, {"rate"}},
      {"momentum", nullptr, p::plan_vectors, false, false, false, {"rate", "mu"}},
  };
  return all;
}

const Op& find_op(const std::string& name) {
  std::string known;
  for (const Op& op : ops()) {
    if (op.name == name) return op;
    known += (known.empty() ? "" : ", ") + std::string(op.name);
  }
  throw Unsupported("no pointwise kernel named " + name + "; there is: " + known);
}

void check(const Op& op, const PointwiseProblem& p, Pass pass, Precision precision) {
  if ((pass == Pass::backward_data && !op.backward_data) ||
      (pass == Pass::backward_weights && !op.backward_weights)) {
    throw Unsupported(p.op + " has no " + name_of(pass) + " pass");
  }
  if (precision == Precision::fp16) {
    throw Unsupported(p.op + " has no fp16 kernels on a CPU; there is: fp32, bf16");
  }
  PYDLBENCH_CHECK(p.batch > 0 && p.channels > 0 && p.height > 0 && p.width > 0,
                  "sizes are positive");
  PYDLBENCH_CHECK(p.op == "concat" ? p.sources.size() > 1 : p.sources.empty(),
                  "sources are those of a concatenation");
  for (const auto& name : op.numbers) {
    PYDLBENCH_CHECK(p.numbers.count(name) == 1, "the parameter " + name + " is missing");
  }
  PYDLBENCH_CHECK(p.numbers.size() == op.numbers.size(), p.op + " was given unknown parameters");
}

// Where thorough, streaming stores are tried for the smallest tensors too.
std::vector<Candidate> pointwise_candidates(const Fields& fields, Pass pass, Precision precision,
                                            bool thorough) {
  const auto problem = problem_of<PointwiseProblem>(fields);
  const Op& op = find_op(problem.op);
  check(op, problem, pass, precision);
  std::vector<Candidate> candidates;
  PlanBuilder builder{problem, pass, data_type(precision), thorough, candidates};
  const auto in = [&](const char* variant, Tag tag, bool own) {
    builder.variant = variant;
    builder.tag = tag;
    if (op.onednn != nullptr) op.onednn(builder);
    if (own && op.own != nullptr) op.own(builder);
  };
  if (!op.maps) {
    in("plain", Tag::nchw, true);
    return candidates;
  }
  in("nchw", Tag::nchw, true);
  in("nhwc", Tag::nhwc, true);
  // Blocks are padded with zeros: loops of ours that know nothing of them would fill those in.
  in("blocked", Tag::nChw16c, false);
  in("blocked", Tag::nChw8c, false);
  return candidates;
}

const Kind pointwise_kind("pointwise", pointwise_candidates);

}  // namespace

}  // namespace pydlbench::cpu
