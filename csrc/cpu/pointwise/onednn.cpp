// oneDNN's primitives for memory-bound layers: elementwise functions, concatenation, sums and
// normalisations.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>

#include "cpu/pointwise/plan_builder.hpp"

namespace pydlbench::cpu::pointwise {

namespace {

using dnnl::algorithm;

// An operation on each element, and its gradient; `alpha` and `beta` are parameters of the
// algorithm. The result is multiplied by `factor`, which gradients of oneDNN lack.
void eltwise(PlanBuilder& builder, algorithm how, float alpha, float beta, float factor = 1.0f) {
  auto attributes = user_scratchpad();
  if (factor != 1.0f) {
    if (!builder.forward()) return;
    dnnl::post_ops behind;
    behind.append_eltwise(algorithm::eltwise_linear, factor, 0.0f);
    attributes.set_post_ops(behind);
  }
  auto& engine = cpu_engine();
  const auto src = builder.map("src", Use::input, DNNL_ARG_SRC);
  const auto dst = builder.map("dst", Use::output, DNNL_ARG_DST);
  const dnnl::eltwise_forward::primitive_desc forward(
      engine, builder.forward() ? forward_kind(builder.pass) : dnnl::prop_kind::forward_training,
      how, src.desc, dst.desc, alpha, beta, attributes, true);
  if (builder.forward()) {
    return for_each_implementation(
        forward, [&](const auto& d) { builder.add_primitive("eltwise", d, {src, dst}); });
  }
  if (!forward) return;
  const auto dy = builder.map("dst", Use::input, DNNL_ARG_DIFF_DST);
  const auto dx = builder.map("src", Use::output, DNNL_ARG_DIFF_SRC);
  for_each_implementation(
      dnnl::eltwise_backward::primitive_desc(engine, how, dx.desc, dy.desc, src.desc, alpha, beta,
                                             forward, user_scratchpad(), true),
      [&](const auto& d) { builder.add_primitive("eltwise", d, {src, dy, dx}); });
}

// The algorithm of an activation with its parameters, such as the bounds of a clip.
struct Activation {
  std::string_view op;
  algorithm how;
  float alpha, beta;
};
constexpr Activation kActivations[] = {
    {"relu", algorithm::eltwise_relu, 0.0f, 0.0f},
    {"relu6", algorithm::eltwise_clip_v2, 0.0f, 6.0f},
    {"hardtanh", algorithm::eltwise_clip_v2, 0.0f, 0.0f},  // the problem has the bounds
    {"hardswish", algorithm::eltwise_hardswish, 1.0f / 6.0f, 0.5f},
    {"hardsigmoid", algorithm::eltwise_hardsigmoid, 1.0f / 6.0f, 0.5f},
    {"sigmoid", algorithm::eltwise_logistic, 0.0f, 0.0f},
    {"tanh", algorithm::eltwise_tanh, 0.0f, 0.0f},
    {"softplus", algorithm::eltwise_soft_relu, 1.0f, 0.0f},
    {"logsigmoid", algorithm::eltwise_soft_relu, -1.0f, 0.0f},
    {"elu", algorithm::eltwise_elu, 0.0f, 0.0f},  // the problem has the factors
    {"silu", algorithm::eltwise_swish, 1.0f, 0.0f},
    {"mish", algorithm::eltwise_mish, 0.0f, 0.0f},
    {"gelu", algorithm::eltwise_gelu_erf, 0.0f, 0.0f},
    {"gelu-tanh", algorithm::eltwise_gelu_tanh, 0.0f, 0.0f},
};

// Sums or products of two tensors, the second of which may have one element per channel.
void binary(PlanBuilder& builder, algorithm how, const Argument& second) {
  const auto src = builder.map("src", Use::input, DNNL_ARG_SRC_0);
  const auto dst = builder.map("dst", Use::output, DNNL_ARG_DST);
  for_each_implementation(
      dnnl::binary::primitive_desc(cpu_engine(), how, src.desc, second.desc, dst.desc,
                                   user_scratchpad(), true),
      [&](const auto& d) { builder.add_primitive("binary", d, {src, second, dst}); });
}

Argument bias(const PlanBuilder& builder, Use use, int index) {
  return builder.vector("bias", use, {1, builder.problem.channels, 1, 1}, builder.type, index);
}

void reduction(PlanBuilder& builder, algorithm how, const Argument& from, const Argument& to,
               std::shared_ptr<const OwnWork> behind = {}) {
  for_each_implementation(
      dnnl::reduction::primitive_desc(cpu_engine(), how, from.desc, to.desc, 2.0f, 0.0f,
                                      user_scratchpad(), true),
      [&](const auto& d) { builder.add_primitive("reduction", d, {from, to}, behind); });
}

// A slope for negative elements: one per channel, or one for all.
void prelu(PlanBuilder& builder) {
  auto& engine = cpu_engine();
  const memory::dim slopes = builder.number("shared") != 0.0 ? 1 : builder.problem.channels;
  const auto weights = [&](Use use, int index) {
    auto argument = builder.vector("weights", use, {1, slopes, 1, 1}, builder.type, index);
    argument.desc = memory::desc({1, slopes, 1, 1}, builder.type, builder.tag);
    return argument;
  };
  const auto src = builder.map("src", Use::input, DNNL_ARG_SRC);
  const auto given = weights(Use::input, DNNL_ARG_WEIGHTS);
  const auto dst = builder.map("dst", Use::output, DNNL_ARG_DST);
  const dnnl::prelu_forward::primitive_desc forward(
      engine, builder.forward() ? forward_kind(builder.pass) : dnnl::prop_kind::forward_training,
      src.desc, given.desc, dst.desc, user_scratchpad(), true);
  if (builder.forward()) {
    return for_each_implementation(
        forward, [&](const auto& d) { builder.add_primitive("prelu", d, {src, given, dst}); });
  }
  if (!forward) return;
  const auto dy = builder.map("dst", Use::input, DNNL_ARG_DIFF_DST);
  const auto dx = builder.map("src", Use::output, DNNL_ARG_DIFF_SRC);
  const auto slope = weights(Use::output, DNNL_ARG_DIFF_WEIGHTS);
  for_each_implementation(
      dnnl::prelu_backward::primitive_desc(engine, src.desc, given.desc, dx.desc, slope.desc,
                                           dy.desc, forward, user_scratchpad(), true),
      [&](const auto& d) { builder.add_primitive("prelu", d, {src, dy, given, dx, slope}); });
}

void concat(PlanBuilder& builder) {
  const auto dst = builder.map("dst", Use::output, DNNL_ARG_DST);
  std::vector<memory::desc> sources;
  std::vector<Argument> arguments;
  for (std::size_t i = 0; i < builder.problem.sources.size(); ++i) {
    const auto number = static_cast<int>(i);
    arguments.push_back(builder.map(i == 0 ? "src" : "src" + std::to_string(i + 1), Use::input,
                                    DNNL_ARG_MULTIPLE_SRC + number, builder.problem.sources[i]));
    sources.push_back(arguments.back().desc);
  }
  arguments.push_back(dst);
  const dnnl::concat::primitive_desc primitive(cpu_engine(), dst.desc, 1, sources,
                                               user_scratchpad());
  builder.add_primitive("concat", primitive, arguments);
}

// to = to + factor x from
void sum(PlanBuilder& builder, const char* from_role, const char* to_role, double factor) {
  const memory::dims dims{builder.problem.channels};
  const auto from =
      builder.vector(from_role, Use::input, dims, builder.type, DNNL_ARG_MULTIPLE_SRC + 1);
  auto to = builder.vector(to_role, Use::updated, dims, builder.type, DNNL_ARG_DST);
  to.second_index = DNNL_ARG_MULTIPLE_SRC;
  const dnnl::sum::primitive_desc primitive(cpu_engine(), to.desc,
                                            {1.0f, static_cast<float>(factor)},
                                            {to.desc, from.desc}, user_scratchpad());
  builder.add_primitive("sum", primitive, {from, to});
}

void norm(PlanBuilder& builder) {
  const auto halve = std::make_shared<OwnWork>(
      OwnWork{0, [](Pointers p, void*) { *static_cast<float*>(p[1]) *= 0.5f; }});
  reduction(
      builder, algorithm::reduction_norm_lp_power_p_sum,
      builder.vector("weights", Use::input, {builder.problem.channels}, builder.type, DNNL_ARG_SRC),
      builder.vector("dst", Use::output, {1}, memory::data_type::f32, DNNL_ARG_DST), halve);
}

}  // namespace

bool is_activation(const std::string& op) {
  return std::any_of(std::begin(kActivations), std::end(kActivations),
                     [&](const Activation& known) { return known.op == op; });
}

void plan_activation(PlanBuilder& builder) {
  with_onednn(builder.problem.op, [&] {
    for (const auto& known : kActivations) {
      if (known.op != builder.problem.op) continue;
      const auto number = [&](const char* name) {
        return static_cast<float>(builder.number(name));
      };
      if (known.op == "hardtanh") {
        eltwise(builder, known.how, number("low"), number("high"));
      } else if (known.op == "elu") {
        eltwise(builder, known.how, number("alpha"), 0.0f, number("factor"));
      } else {
        eltwise(builder, known.how, known.alpha, known.beta);
      }
    }
  });
}

void plan_onednn_maps(PlanBuilder& builder) {
  const auto& op = builder.problem.op;
  with_onednn(op, [&] {
    if (op == "add") {
      binary(builder, algorithm::binary_add, builder.map("src2", Use::input, DNNL_ARG_SRC_1));
    } else if (op == "scale" && builder.forward()) {
      const memory::dims dims{builder.problem.batch, builder.problem.channels, 1, 1};
      binary(builder, algorithm::binary_mul,
             builder.vector("src2", Use::input, dims, builder.type, DNNL_ARG_SRC_1));
    } else if (op == "bias" && builder.forward()) {
      binary(builder, algorithm::binary_add, bias(builder, Use::input, DNNL_ARG_SRC_1));
    } else if (op == "bias") {
      reduction(builder, algorithm::reduction_sum, builder.map("dst", Use::input, DNNL_ARG_SRC),
                bias(builder, Use::output, DNNL_ARG_DST));
    } else if (op == "prelu") {
      prelu(builder);
    } else if (op == "concat" && builder.forward()) {
      concat(builder);
    } else if (op == "sgd") {
      sum(builder, "gradient", "weights", -builder.number("rate"));
    } else if (op == "l2" && builder.forward()) {
      norm(builder);
    } else if (op == "l2") {
      sum(builder, "weights", "gradient", builder.number("decay"));
    }
  });
}

namespace {

using dnnl::algorithm;

void lrn(PlanBuilder& builder) {
  auto& engine = cpu_engine();
  const auto how = algorithm::lrn_across_channels;
  const auto size = static_cast<memory::dim>(builder.number("local_size"));
  const auto alpha = static_cast<float>(builder.number("alpha"));
  const auto beta = static_cast<float>(builder.number("beta"));
  const auto k = static_cast<float>(builder.number("k"));
  const auto src = builder.map("src", Use::input, DNNL_ARG_SRC);
  const auto dst = builder.map("dst", Use::output, DNNL_ARG_DST);
  const dnnl::lrn_forward::primitive_desc forward(
      engine, builder.forward() ? forward_kind(builder.pass) : dnnl::prop_kind::forward_training,
      how, src.desc, dst.desc, size, alpha, beta, k, user_scratchpad(), true);
  if (builder.forward()) {
    return for_each_implementation(
        forward, [&](const auto& d) { builder.add_primitive("lrn", d, {src, dst}); });
  }
  // oneDNN 3.2's gradient for nhwc accesses memory outside of its tensors: results change from run
  // to run, and it may corrupt the process.
  if (builder.tag == Tag::nhwc) return;
  const auto dy = builder.map("dst", Use::input, DNNL_ARG_DIFF_DST);
  const auto dx = builder.map("src", Use::output, DNNL_ARG_DIFF_SRC);
  // The workspace's format depends on the forward implementation: pair each with its backward.
  for_each_implementation(forward, [&](const auto& f) {
    const Invocation before{f, {src, dst}};
    for_each_implementation(
        dnnl::lrn_backward::primitive_desc(engine, how, dx.desc, dy.desc, src.desc, size, alpha,
                                           beta, k, f, user_scratchpad(), true),
        [&](const auto& d) { builder.add_primitive("lrn", d, {src, dy, dx}, {}, &before); });
  });
}

// Tensors: ... 4 mean, 5 variance, 6 running_mean, 7 running_variance.
std::shared_ptr<const OwnWork> move_statistics(const PlanBuilder& builder) {
  const Index channels = builder.problem.channels;
  const auto count =
      static_cast<float>(builder.problem.batch * builder.problem.height * builder.problem.width);
  const float unbiased = count / std::max(1.0f, count - 1.0f);
  const auto momentum = static_cast<float>(builder.number("momentum"));
  return std::make_shared<OwnWork>(OwnWork{0, [=](Pointers p, void*) {
                                             for (const int i : {0, 1}) {
                                               const auto* batch =
                                                   static_cast<const float*>(p[4 + i]);
                                               auto* running = static_cast<float*>(p[6 + i]);
                                               const float factor = i == 0 ? 1.0f : unbiased;
                                               for (Index c = 0; c < channels; ++c) {
                                                 running[c] +=
                                                     momentum * (batch[c] * factor - running[c]);
                                               }
                                             }
                                           }});
}

void batchnorm(PlanBuilder& builder) {
  using Flags = dnnl::normalization_flags;
  auto& engine = cpu_engine();
  const auto epsilon = static_cast<float>(builder.number("epsilon"));
  const auto src = builder.map("src", Use::input, DNNL_ARG_SRC);
  const auto dst = builder.map("dst", Use::output, DNNL_ARG_DST);
  const auto weights = builder.channel_floats("weights", Use::input, DNNL_ARG_SCALE);
  const auto bias = builder.channel_floats("bias", Use::input, DNNL_ARG_SHIFT);
  const bool inference = builder.pass == Pass::forward_inference;
  const auto statistics = inference ? Use::input : builder.forward() ? Use::output : Use::input;
  const auto mean = builder.channel_floats("mean", statistics, DNNL_ARG_MEAN);
  const auto variance = builder.channel_floats("variance", statistics, DNNL_ARG_VARIANCE);
  const auto trained = Flags::use_scale | Flags::use_shift;
  const dnnl::batch_normalization_forward::primitive_desc forward(
      engine, inference ? dnnl::prop_kind::forward_inference : dnnl::prop_kind::forward_training,
      src.desc, dst.desc, epsilon, inference ? trained | Flags::use_global_stats : trained,
      user_scratchpad(), true);
  if (inference) {
    return for_each_implementation(forward, [&](const auto& d) {
      builder.add_primitive("bnorm", d, {src, weights, bias, mean, variance, dst});
    });
  }
  if (builder.forward()) {
    const auto behind = move_statistics(builder);
    return for_each_implementation(forward, [&](const auto& d) {
      builder.add_primitive("bnorm", d,
                            {src, weights, bias, dst, mean, variance,
                             builder.channel_floats("running_mean", Use::updated),
                             builder.channel_floats("running_variance", Use::updated)},
                            behind);
    });
  }
  if (!forward) return;
  const auto dy = builder.map("dst", Use::input, DNNL_ARG_DIFF_DST);
  const auto dx = builder.map("src", Use::output, DNNL_ARG_DIFF_SRC);
  for_each_implementation(
      dnnl::batch_normalization_backward::primitive_desc(engine, dnnl::prop_kind::backward, dx.desc,
                                                         dy.desc, src.desc, epsilon, trained,
                                                         forward, user_scratchpad(), true),
      [&](const auto& d) {
        builder.add_primitive("bnorm", d,
                              {src, dy, weights, mean, variance, dx,
                               builder.channel_floats("weights", Use::output, DNNL_ARG_DIFF_SCALE),
                               builder.channel_floats("bias", Use::output, DNNL_ARG_DIFF_SHIFT)});
      });
}

// A tensor as rows of elements, for operations along the last axis.
Argument rows_of(const PlanBuilder& builder, const char* role, Use use, int index) {
  const auto& p = builder.problem;
  return builder.vector(role, use, {p.batch * p.channels * p.height, p.width}, builder.type, index);
}

// The sizes before the axis, along it and behind it, in plain layout or with the axis last.
void softmax_in(PlanBuilder& builder, algorithm how, const memory::dims& dims, bool axis_last) {
  auto& engine = cpu_engine();
  const auto tensor = [&](const char* role, Use use, int index) {
    auto argument = builder.vector(role, use, dims, builder.type, index);
    if (axis_last) argument.desc = memory::desc(dims, builder.type, Tag::acb);
    return argument;
  };
  const auto src = tensor("src", Use::input, DNNL_ARG_SRC);
  const auto dst = tensor("dst", Use::output, DNNL_ARG_DST);
  const dnnl::softmax_forward::primitive_desc forward(
      engine, builder.forward() ? forward_kind(builder.pass) : dnnl::prop_kind::forward_training,
      how, src.desc, dst.desc, 1, user_scratchpad(), true);
  if (builder.forward()) {
    return for_each_implementation(
        forward, [&](const auto& d) { builder.add_primitive("softmax", d, {src, dst}); });
  }
  if (!forward) return;
  const auto result = tensor("result", Use::input, DNNL_ARG_DST);
  const auto dy = tensor("dst", Use::input, DNNL_ARG_DIFF_DST);
  const auto dx = tensor("src", Use::output, DNNL_ARG_DIFF_SRC);
  for_each_implementation(
      dnnl::softmax_backward::primitive_desc(engine, how, dx.desc, dy.desc, result.desc, 1, forward,
                                             user_scratchpad(), true),
      [&](const auto& d) { builder.add_primitive("softmax", d, {result, dy, dx}); });
}

void softmax_along(PlanBuilder& builder, algorithm how) {
  memory::dims dims{1, 1, 1};
  const auto images = builder.dims();
  const auto axis = static_cast<std::size_t>(builder.number("axis"));
  for (std::size_t i = 0; i < images.size(); ++i) {
    dims[i < axis ? 0 : i == axis ? 1 : 2] *= images[i];
  }
  if (dims.back() == 1) dims.pop_back();
  softmax_in(builder, how, dims, false);
  if (dims.size() < 3) return;
  // In plain layouts, oneDNN has only its slow reference for axes before the last.
  const auto plain = builder.candidates.size();
  softmax_in(builder, how, dims, true);
  for (auto i = plain; i < builder.candidates.size(); ++i) {
    builder.candidates[i].variant = builder.candidates[i].layout = "axis last";
  }
}

void layernorm(PlanBuilder& builder) {
  using Flags = dnnl::normalization_flags;
  auto& engine = cpu_engine();
  const auto epsilon = static_cast<float>(builder.number("epsilon"));
  const auto trained = Flags::use_scale | Flags::use_shift;
  const auto floats = [&](const char* role, Use use, int index) {
    const auto& p = builder.problem;
    const bool of_rows = index == DNNL_ARG_MEAN || index == DNNL_ARG_VARIANCE;
    return builder.vector(role, use, {of_rows ? p.batch * p.channels * p.height : p.width},
                          memory::data_type::f32, index);
  };
  const auto src = rows_of(builder, "src", Use::input, DNNL_ARG_SRC);
  const auto dst = rows_of(builder, "dst", Use::output, DNNL_ARG_DST);
  const auto weights = floats("weights", Use::input, DNNL_ARG_SCALE);
  const auto bias = floats("bias", Use::input, DNNL_ARG_SHIFT);
  const auto statistics = builder.forward() ? Use::output : Use::input;
  const auto mean = floats("mean", statistics, DNNL_ARG_MEAN);
  const auto variance = floats("variance", statistics, DNNL_ARG_VARIANCE);
  const dnnl::layer_normalization_forward::primitive_desc forward(
      engine, builder.forward() ? forward_kind(builder.pass) : dnnl::prop_kind::forward_training,
      src.desc, dst.desc, mean.desc, epsilon, trained, user_scratchpad(), true);
  if (builder.forward()) {
    return for_each_implementation(forward, [&](const auto& d) {
      std::vector<Argument> arguments{src, weights, bias, dst};
      if (builder.training()) arguments.insert(arguments.end(), {mean, variance});
      builder.add_primitive("lnorm", d, std::move(arguments));
    });
  }
  if (!forward) return;
  const auto dy = rows_of(builder, "dst", Use::input, DNNL_ARG_DIFF_DST);
  const auto dx = rows_of(builder, "src", Use::output, DNNL_ARG_DIFF_SRC);
  auto scale = weights;
  scale.second_index = DNNL_ARG_SHIFT;  // required but not read
  for_each_implementation(
      dnnl::layer_normalization_backward::primitive_desc(engine, dnnl::prop_kind::backward, dx.desc,
                                                         dy.desc, src.desc, mean.desc, epsilon,
                                                         trained, forward, user_scratchpad(), true),
      [&](const auto& d) {
        builder.add_primitive("lnorm", d,
                              {src, dy, scale, mean, variance, dx,
                               floats("weights", Use::output, DNNL_ARG_DIFF_SCALE),
                               floats("bias", Use::output, DNNL_ARG_DIFF_SHIFT)});
      });
}

// Our own code computes the loss from the probabilities, because bfloat16 is not precise enough.
void softmax(PlanBuilder& builder) {
  if (!builder.forward() || builder.type != memory::data_type::f32) return;
  const Index rows = builder.problem.batch, classes = builder.problem.channels;
  const auto src = builder.map("src", Use::input, DNNL_ARG_SRC);
  const auto dst = builder.map("dst", Use::output, DNNL_ARG_DST);
  const auto labels = builder.vector("labels", Use::input, {rows}, memory::data_type::s32);
  const auto loss = builder.vector("loss", Use::output, {1}, memory::data_type::f32);
  const auto behind = std::make_shared<OwnWork>(OwnWork{
      0, [=](Pointers p, void*) {
        double sum = 0.0;
        for (Index n = 0; n < rows; ++n) {
          const auto label = static_cast<const std::int32_t*>(p[1])[n];
          sum -=
              std::log(static_cast<double>(static_cast<const float*>(p[2])[n * classes + label]));
        }
        *static_cast<float*>(p[3]) = static_cast<float>(sum / static_cast<double>(rows));
      }});
  for_each_implementation(dnnl::softmax_forward::primitive_desc(
                              cpu_engine(), forward_kind(builder.pass), algorithm::softmax_accurate,
                              src.desc, dst.desc, 1, user_scratchpad(), true),
                          [&](const auto& d) {
                            builder.add_primitive("softmax", d, {src, labels, dst, loss}, behind);
                          });
}

}  // namespace

void plan_onednn_normalisations(PlanBuilder& builder) {
  const auto& op = builder.problem.op;
  with_onednn(op, [&] {
    if (op == "lrn") lrn(builder);
    if (op == "batchnorm") batchnorm(builder);
    if (op == "layernorm") layernorm(builder);
    if (op == "softmax") softmax_along(builder, algorithm::softmax_accurate);
    if (op == "log-softmax") softmax_along(builder, algorithm::softmax_log);
    if (op == "softmax-xent") softmax(builder);
  });
}

}  // namespace pydlbench::cpu::pointwise
