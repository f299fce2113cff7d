// Transposed-convolution plans: layouts x implementations for the four propagation kinds.
#include <string>
#include <vector>

#include "cpu/plans.hpp"

namespace pydlbench::cpu {

namespace {

using dnnl::memory;
using Tag = dnnl::memory::format_tag;

struct Variant {
  const char* name;
  Tag images, weights, grouped_weights;
};

// As of convolutions: what the library likes best, channels last and first with weights packed by
// the library or as frameworks keep them, and blocked throughout. Weights are logically (out, in),
// so those that frameworks keep as (in, out, height, width) are "iohw".
constexpr Variant kVariants[] = {
    {"any", Tag::any, Tag::any, Tag::any},        {"nhwc", Tag::nhwc, Tag::any, Tag::any},
    {"nhwc", Tag::nhwc, Tag::hwio, Tag::hwigo},   {"nchw", Tag::nchw, Tag::any, Tag::any},
    {"nchw", Tag::nchw, Tag::iohw, Tag::giohw},   {"blocked", Tag::nChw16c, Tag::any, Tag::any},
    {"blocked", Tag::nChw8c, Tag::any, Tag::any},
};

std::string primitive_name(Pass pass) { return std::string("deconvolution ") + name_of(pass); }

}  // namespace

std::vector<Candidate> deconv2d_candidates(const Deconv2dProblem& p, Pass pass,
                                           Precision precision) {
  const auto type = data_type(precision);
  const std::string primitive = primitive_name(pass);
  const bool grouped = p.groups > 1;
  const auto in = p.in_channels / p.groups;
  const auto out = p.out_channels / p.groups;
  const memory::dims src_dims{p.batch, p.in_channels, p.in_height, p.in_width};
  const memory::dims dst_dims{p.batch, p.out_channels, p.out_height, p.out_width};
  const memory::dims weights_dims =
      grouped ? memory::dims{p.groups, out, in, p.kernel_height, p.kernel_width}
              : memory::dims{out, in, p.kernel_height, p.kernel_width};
  const memory::dims strides{p.stride_height, p.stride_width};
  const memory::dims dilates{p.dilation_height - 1, p.dilation_width - 1};
  const memory::dims pad_begin{p.pad_top, p.pad_left};
  const memory::dims pad_end{p.pad_bottom, p.pad_right};
  const std::vector<std::string> letters{"nchw", grouped ? "goihw" : "oihw", "nchw"};

  return planned(primitive, [&](std::vector<Candidate>& candidates) {
    const auto f32 = memory::data_type::f32;
    const memory::desc plain_src(src_dims, f32, Tag::nchw);
    // The caller's array is (in, out, height, width).
    const memory::desc plain_weights(weights_dims, f32, grouped ? Tag::giohw : Tag::iohw);
    const memory::desc plain_dst(dst_dims, f32, Tag::nchw);
    const auto attributes = user_scratchpad();
    auto& engine = cpu_engine();
    const auto algorithm = dnnl::algorithm::deconvolution_direct;
    const auto kind = is_forward(pass) ? forward_kind(pass) : dnnl::prop_kind::forward_training;
    // Throws, with the library's reason, what no layout can do; backward descriptors want it.
    const dnnl::deconvolution_forward::primitive_desc hint(
        engine, kind, algorithm, memory::desc(src_dims, type, Tag::any),
        memory::desc(weights_dims, type, Tag::any), memory::desc(dst_dims, type, Tag::any), strides,
        dilates, pad_begin, pad_end, attributes);

    for (const auto& variant : kVariants) {
      const memory::desc src(src_dims, type, variant.images);
      const memory::desc weights(weights_dims, type,
                                 grouped ? variant.grouped_weights : variant.weights);
      const memory::desc dst(dst_dims, type, variant.images);

      const auto append = [&](const auto& descriptor, std::vector<Argument> arguments) {
        Candidate candidate{};
        candidate.primitive = primitive;
        candidate.variant = variant.name;
        candidate.run = {descriptor, std::move(arguments)};
        finish(candidate, letters);
        append_new(candidates, std::move(candidate));
      };

      if (is_forward(pass)) {
        for_each_implementation(
            dnnl::deconvolution_forward::primitive_desc(engine, kind, algorithm, src, weights, dst,
                                                        strides, dilates, pad_begin, pad_end,
                                                        attributes, true),
            [&](const auto& d) {
              append(d, {{DNNL_ARG_SRC, "src", d.src_desc(), plain_src, false},
                         {DNNL_ARG_WEIGHTS, "weights", d.weights_desc(), plain_weights, false},
                         {DNNL_ARG_DST, "dst", d.dst_desc(), plain_dst, true}});
            });
      } else if (pass == Pass::backward_data) {
        for_each_implementation(
            dnnl::deconvolution_backward_data::primitive_desc(engine, algorithm, src, weights, dst,
                                                              strides, dilates, pad_begin, pad_end,
                                                              hint, attributes, true),
            [&](const auto& d) {
              append(d, {{DNNL_ARG_DIFF_SRC, "src", d.diff_src_desc(), plain_src, true},
                         {DNNL_ARG_WEIGHTS, "weights", d.weights_desc(), plain_weights, false},
                         {DNNL_ARG_DIFF_DST, "dst", d.diff_dst_desc(), plain_dst, false}});
            });
      } else {
        for_each_implementation(
            dnnl::deconvolution_backward_weights::primitive_desc(engine, algorithm, src, weights,
                                                                 dst, strides, dilates, pad_begin,
                                                                 pad_end, hint, attributes, true),
            [&](const auto& d) {
              append(d, {{DNNL_ARG_SRC, "src", d.src_desc(), plain_src, false},
                         {DNNL_ARG_DIFF_WEIGHTS, "weights", d.diff_weights_desc(), plain_weights,
                          true},
                         {DNNL_ARG_DIFF_DST, "dst", d.diff_dst_desc(), plain_dst, false}});
            });
      }
    }
  });
}

}  // namespace pydlbench::cpu
