// oneDNN's normalisations: local response, batch, and softmax.
#include <algorithm>
#include <cmath>

#include "cpu/pointwise/draft.hpp"

namespace pydlbench::cpu::pointwise {

namespace {

using dnnl::algorithm;

void lrn(Draft& draft) {
  auto& engine = cpu_engine();
  const auto how = algorithm::lrn_across_channels;
  const auto size = static_cast<memory::dim>(draft.number("local_size"));
  const auto alpha = static_cast<float>(draft.number("alpha"));
  const auto beta = static_cast<float>(draft.number("beta"));
  const auto k = static_cast<float>(draft.number("k"));
  const auto src = draft.map("src", Use::input, DNNL_ARG_SRC);
  const auto dst = draft.map("dst", Use::output, DNNL_ARG_DST);
  const dnnl::lrn_forward::primitive_desc forward(
      engine, draft.forward() ? forward_kind(draft.pass) : dnnl::prop_kind::forward_training, how,
      src.desc, dst.desc, size, alpha, beta, k, user_scratchpad(), true);
  if (draft.forward()) {
    return for_each_implementation(
        forward, [&](const auto& d) { draft.add_primitive("lrn", d, {src, dst}); });
  }
  // oneDNN 3.2's gradient for nhwc mixes in what lies around its tensors: results change from run
  // to run, and whatever else it does there is done to the measuring process.
  if (draft.tag == Tag::nhwc) return;
  const auto dy = draft.map("dst", Use::input, DNNL_ARG_DIFF_DST);
  const auto dx = draft.map("src", Use::output, DNNL_ARG_DIFF_SRC);
  // The workspace's format belongs to a forward implementation: each pairs with its own backward.
  for_each_implementation(forward, [&](const auto& f) {
    const Invocation before{f, {src, dst}};
    for_each_implementation(
        dnnl::lrn_backward::primitive_desc(engine, how, dx.desc, dy.desc, src.desc, size, alpha,
                                           beta, k, f, user_scratchpad(), true),
        [&](const auto& d) { draft.add_primitive("lrn", d, {src, dy, dx}, {}, &before); });
  });
}

// Tensors: ... 4 mean, 5 variance, 6 running_mean, 7 running_variance.
std::shared_ptr<const OwnWork> move_statistics(const Draft& draft) {
  const Index channels = draft.problem.channels;
  const auto count =
      static_cast<float>(draft.problem.batch * draft.problem.height * draft.problem.width);
  const float unbiased = count / std::max(1.0f, count - 1.0f);
  const auto momentum = static_cast<float>(draft.number("momentum"));
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

void batchnorm(Draft& draft) {
  using Flags = dnnl::normalization_flags;
  auto& engine = cpu_engine();
  const auto epsilon = static_cast<float>(draft.number("epsilon"));
  const auto src = draft.map("src", Use::input, DNNL_ARG_SRC);
  const auto dst = draft.map("dst", Use::output, DNNL_ARG_DST);
  const auto weights = draft.channel_floats("weights", Use::input, DNNL_ARG_SCALE);
  const auto bias = draft.channel_floats("bias", Use::input, DNNL_ARG_SHIFT);
  const bool inference = draft.pass == Pass::forward_inference;
  const auto statistics = inference ? Use::input : draft.forward() ? Use::output : Use::input;
  const auto mean = draft.channel_floats("mean", statistics, DNNL_ARG_MEAN);
  const auto variance = draft.channel_floats("variance", statistics, DNNL_ARG_VARIANCE);
  const auto trained = Flags::use_scale | Flags::use_shift;
  const dnnl::batch_normalization_forward::primitive_desc forward(
      engine, inference ? dnnl::prop_kind::forward_inference : dnnl::prop_kind::forward_training,
      src.desc, dst.desc, epsilon, inference ? trained | Flags::use_global_stats : trained,
      user_scratchpad(), true);
  if (inference) {
    return for_each_implementation(forward, [&](const auto& d) {
      draft.add_primitive("bnorm", d, {src, weights, bias, mean, variance, dst});
    });
  }
  if (draft.forward()) {
    const auto behind = move_statistics(draft);
    return for_each_implementation(forward, [&](const auto& d) {
      draft.add_primitive("bnorm", d,
                          {src, weights, bias, dst, mean, variance,
                           draft.channel_floats("running_mean", Use::updated),
                           draft.channel_floats("running_variance", Use::updated)},
                          behind);
    });
  }
  if (!forward) return;
  const auto dy = draft.map("dst", Use::input, DNNL_ARG_DIFF_DST);
  const auto dx = draft.map("src", Use::output, DNNL_ARG_DIFF_SRC);
  for_each_implementation(
      dnnl::batch_normalization_backward::primitive_desc(engine, dnnl::prop_kind::backward, dx.desc,
                                                         dy.desc, src.desc, epsilon, trained,
                                                         forward, user_scratchpad(), true),
      [&](const auto& d) {
        draft.add_primitive("bnorm", d,
                            {src, dy, weights, mean, variance, dx,
                             draft.channel_floats("weights", Use::output, DNNL_ARG_DIFF_SCALE),
                             draft.channel_floats("bias", Use::output, DNNL_ARG_DIFF_SHIFT)});
      });
}

// The loss is ours, from the probabilities: bfloat16 has no digits left for it.
void softmax(Draft& draft) {
  if (!draft.forward() || draft.type != memory::data_type::f32) return;
  const Index rows = draft.problem.batch, classes = draft.problem.channels;
  const auto src = draft.map("src", Use::input, DNNL_ARG_SRC);
  const auto dst = draft.map("dst", Use::output, DNNL_ARG_DST);
  const auto labels = draft.vector("labels", Use::input, {rows}, memory::data_type::s32);
  const auto loss = draft.vector("loss", Use::output, {1}, memory::data_type::f32);
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
  for_each_implementation(
      dnnl::softmax_forward::primitive_desc(cpu_engine(), forward_kind(draft.pass),
                                            algorithm::softmax_accurate, src.desc, dst.desc, 1,
                                            user_scratchpad(), true),
      [&](const auto& d) { draft.add_primitive("softmax", d, {src, labels, dst, loss}, behind); });
}

}  // namespace

void draft_onednn_normalisations(Draft& draft) {
  const auto& op = draft.problem.op;
  with_onednn(op, [&] {
    if (op == "lrn") lrn(draft);
    if (op == "batchnorm") batchnorm(draft);
    if (op == "softmax-xent") softmax(draft);
  });
}

}  // namespace pydlbench::cpu::pointwise
