// oneDNN's primitives that map elements, join tensors and add up.
#include <cstdint>

#include "cpu/pointwise/draft.hpp"

namespace pydlbench::cpu::pointwise {

namespace {

using dnnl::algorithm;

void relu(Draft& draft) {
  auto& engine = cpu_engine();
  const auto src = draft.map("src", Use::input, DNNL_ARG_SRC);
  const auto dst = draft.map("dst", Use::output, DNNL_ARG_DST);
  const dnnl::eltwise_forward::primitive_desc forward(
      engine, draft.forward() ? forward_kind(draft.pass) : dnnl::prop_kind::forward_training,
      algorithm::eltwise_relu, src.desc, dst.desc, 0.0f, user_scratchpad(), true);
  if (draft.forward()) {
    return for_each_implementation(
        forward, [&](const auto& d) { draft.add_primitive("eltwise", d, {src, dst}); });
  }
  if (!forward) return;
  const auto dy = draft.map("dst", Use::input, DNNL_ARG_DIFF_DST);
  const auto dx = draft.map("src", Use::output, DNNL_ARG_DIFF_SRC);
  for_each_implementation(
      dnnl::eltwise_backward::primitive_desc(engine, algorithm::eltwise_relu, dx.desc, dy.desc,
                                             src.desc, 0.0f, forward, user_scratchpad(), true),
      [&](const auto& d) { draft.add_primitive("eltwise", d, {src, dy, dx}); });
}

// Sums of two tensors, the second of which may have one element per channel.
void binary(Draft& draft, const Argument& second) {
  const auto src = draft.map("src", Use::input, DNNL_ARG_SRC_0);
  const auto dst = draft.map("dst", Use::output, DNNL_ARG_DST);
  for_each_implementation(
      dnnl::binary::primitive_desc(cpu_engine(), algorithm::binary_add, src.desc, second.desc,
                                   dst.desc, user_scratchpad(), true),
      [&](const auto& d) { draft.add_primitive("binary", d, {src, second, dst}); });
}

Argument bias(const Draft& draft, Use use, int index) {
  return draft.vector("bias", use, {1, draft.problem.channels, 1, 1}, draft.type, index);
}

void reduction(Draft& draft, algorithm how, const Argument& from, const Argument& to,
               std::shared_ptr<const OwnWork> behind = {}) {
  for_each_implementation(
      dnnl::reduction::primitive_desc(cpu_engine(), how, from.desc, to.desc, 2.0f, 0.0f,
                                      user_scratchpad(), true),
      [&](const auto& d) { draft.add_primitive("reduction", d, {from, to}, behind); });
}

void concat(Draft& draft) {
  const auto dst = draft.map("dst", Use::output, DNNL_ARG_DST);
  std::vector<memory::desc> sources;
  std::vector<Argument> arguments;
  for (std::size_t i = 0; i < draft.problem.sources.size(); ++i) {
    const auto number = static_cast<int>(i);
    arguments.push_back(draft.map(i == 0 ? "src" : "src" + std::to_string(i + 1), Use::input,
                                  DNNL_ARG_MULTIPLE_SRC + number, draft.problem.sources[i]));
    sources.push_back(arguments.back().desc);
  }
  arguments.push_back(dst);
  const dnnl::concat::primitive_desc primitive(cpu_engine(), dst.desc, 1, sources,
                                               user_scratchpad());
  draft.add_primitive("concat", primitive, arguments);
}

// to = to + factor x from
void sum(Draft& draft, const char* from_role, const char* to_role, double factor) {
  const memory::dims dims{draft.problem.channels};
  const auto from =
      draft.vector(from_role, Use::input, dims, draft.type, DNNL_ARG_MULTIPLE_SRC + 1);
  auto to = draft.vector(to_role, Use::updated, dims, draft.type, DNNL_ARG_DST);
  to.second_index = DNNL_ARG_MULTIPLE_SRC;
  const dnnl::sum::primitive_desc primitive(cpu_engine(), to.desc,
                                            {1.0f, static_cast<float>(factor)},
                                            {to.desc, from.desc}, user_scratchpad());
  draft.add_primitive("sum", primitive, {from, to});
}

void norm(Draft& draft) {
  const auto halve = std::make_shared<OwnWork>(
      OwnWork{0, [](Pointers p, void*) { *static_cast<float*>(p[1]) *= 0.5f; }});
  reduction(draft, algorithm::reduction_norm_lp_power_p_sum,
            draft.vector("weights", Use::input, {draft.problem.channels}, draft.type, DNNL_ARG_SRC),
            draft.vector("dst", Use::output, {1}, memory::data_type::f32, DNNL_ARG_DST), halve);
}

}  // namespace

void draft_onednn_maps(Draft& draft) {
  const auto& op = draft.problem.op;
  with_onednn(op, [&] {
    if (op == "relu") {
      relu(draft);
    } else if (op == "add") {
      binary(draft, draft.map("src2", Use::input, DNNL_ARG_SRC_1));
    } else if (op == "bias" && draft.forward()) {
      binary(draft, bias(draft, Use::input, DNNL_ARG_SRC_1));
    } else if (op == "bias") {
      reduction(draft, algorithm::reduction_sum, draft.map("dst", Use::input, DNNL_ARG_SRC),
                bias(draft, Use::output, DNNL_ARG_DST));
    } else if (op == "concat" && draft.forward()) {
      concat(draft);
    } else if (op == "sgd") {
      sum(draft, "gradient", "weights", -draft.number("rate"));
    } else if (op == "l2" && draft.forward()) {
      norm(draft);
    } else if (op == "l2") {
      sum(draft, "weights", "gradient", draft.number("decay"));
    }
  });
}

}  // namespace pydlbench::cpu::pointwise
