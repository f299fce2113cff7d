#include "cpu/pointwise/plans.hpp"

#include <string_view>

#include "core/error.hpp"
#include "cpu/pointwise/draft.hpp"

namespace pydlbench::cpu {

namespace {

using pointwise::Draft;
using Tag = dnnl::memory::format_tag;

struct Op {
  std::string_view name;
  void (*onednn)(Draft&);  // null where it has nothing
  void (*own)(Draft&);
  bool maps;  // images; else what has only one layout
  bool backward_data, backward_weights;
  std::vector<std::string> numbers;
};

const std::vector<Op>& ops() {
  namespace p = pointwise;
  static const std::vector<Op> all{
      {"bias", p::draft_onednn_maps, p::draft_bias, true, false, true, {}},
      {"relu", p::draft_onednn_maps, p::draft_elementwise, true, true, false, {}},
      {"lrn",
       p::draft_onednn_normalisations,
       p::draft_lrn,
       true,
       true,
       false,
       {"local_size", "alpha", "beta", "k"}},
      {"batchnorm",
       p::draft_onednn_normalisations,
       p::draft_batchnorm,
       true,
       true,
       false,
       {"epsilon", "momentum"}},
      {"add", p::draft_onednn_maps, p::draft_elementwise, true, false, false, {}},
      {"concat", p::draft_onednn_maps, p::draft_concat, true, true, false, {}},
      {"softmax-xent", p::draft_onednn_normalisations, p::draft_softmax, false, true, false, {}},
      {"dropout", nullptr, p::draft_elementwise, true, true, false, {"keep"}},
      {"l2", p::draft_onednn_maps, p::draft_vectors, false, false, true, {"decay"}},
      {"sgd", p::draft_onednn_maps, p::draft_vectors, false, false, false, {"rate"}},
      {"momentum", nullptr, p::draft_vectors, false, false, false, {"rate", "mu"}},
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
    const char* what = pass == Pass::backward_data ? "backward-data" : "backward-weights";
    throw Unsupported(p.op + " has no " + what + " pass");
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

}  // namespace

std::vector<Candidate> pointwise_candidates(const PointwiseProblem& problem, Pass pass,
                                            Precision precision, bool thorough) {
  const Op& op = find_op(problem.op);
  check(op, problem, pass, precision);
  std::vector<Candidate> candidates;
  Draft draft{problem, pass, data_type(precision), thorough, candidates};
  const auto in = [&](const char* variant, Tag tag, bool own) {
    draft.variant = variant;
    draft.tag = tag;
    if (op.onednn != nullptr) op.onednn(draft);
    if (own) op.own(draft);
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

}  // namespace pydlbench::cpu
