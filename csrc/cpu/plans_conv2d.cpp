// Convolution plans: layouts x implementations for the four propagation kinds.
#include <string>
#include <vector>

#include "cpu/plans.hpp"

namespace pydlbench::cpu {

namespace {

using dnnl::memory;
using Tag = dnnl::memory::format_tag;

struct Variant {
  const char* name;
  Tag src, weights, grouped_weights, dst;
};

// The library's first choice is often not its best, so the layouts that networks really use are
// tried too: channels last and channels first with weights packed by the library, channels first
// into blocked (a first layer with three channels), blocked throughout, and plain weights as
// frameworks keep them.
constexpr Variant kVariants[] = {
    {"any", Tag::any, Tag::any, Tag::any, Tag::any},
    {"nhwc", Tag::nhwc, Tag::any, Tag::any, Tag::nhwc},
    {"nhwc", Tag::nhwc, Tag::hwio, Tag::hwigo, Tag::nhwc},
    {"nhwc", Tag::nhwc, Tag::ohwi, Tag::gohwi, Tag::nhwc},
    {"nchw", Tag::nchw, Tag::any, Tag::any, Tag::nchw},
    {"nchw", Tag::nchw, Tag::oihw, Tag::goihw, Tag::nchw},
    {"blocked", Tag::nChw16c, Tag::any, Tag::any, Tag::nChw16c},
    {"blocked", Tag::nChw8c, Tag::any, Tag::any, Tag::nChw8c},
    {"blocked", Tag::nchw, Tag::any, Tag::any, Tag::nChw16c},
    {"blocked", Tag::nchw, Tag::any, Tag::any, Tag::nChw8c},
};

struct Shapes {
  memory::dims src, weights, dst, strides, dilates, pad_begin, pad_end;
  bool grouped;

  explicit Shapes(const Conv2dProblem& p)
      : src{p.batch, p.in_channels, p.in_height, p.in_width},
        dst{p.batch, p.out_channels, p.out_height, p.out_width},
        strides{p.stride_height, p.stride_width},
        dilates{p.dilation_height - 1, p.dilation_width - 1},  // oneDNN counts from zero
        pad_begin{p.pad_top, p.pad_left},
        pad_end{p.pad_bottom, p.pad_right},
        grouped(p.groups > 1) {
    const auto in = p.in_channels / p.groups;
    const auto out = p.out_channels / p.groups;
    weights = grouped ? memory::dims{p.groups, out, in, p.kernel_height, p.kernel_width}
                      : memory::dims{out, in, p.kernel_height, p.kernel_width};
  }
};

const char* primitive_name(Pass pass) {
  if (is_forward(pass)) return "convolution forward";
  return pass == Pass::backward_data ? "convolution backward-data" : "convolution backward-weights";
}

}  // namespace

std::vector<Candidate> conv2d_candidates(const Conv2dProblem& problem, Pass pass,
                                         Precision precision) {
  const Shapes shapes(problem);
  const auto type = data_type(precision);
  const std::string primitive = primitive_name(pass);

  return planned(primitive, [&](std::vector<Candidate>& candidates) {
    const auto f32 = memory::data_type::f32;
    const memory::desc plain_src(shapes.src, f32, Tag::nchw);
    const memory::desc plain_weights(shapes.weights, f32, shapes.grouped ? Tag::goihw : Tag::oihw);
    const memory::desc plain_dst(shapes.dst, f32, Tag::nchw);
    const auto attributes = user_scratchpad();
    auto& engine = cpu_engine();
    const auto algorithm = dnnl::algorithm::convolution_direct;
    const std::vector<std::string> letters{"nchw", shapes.grouped ? "goihw" : "oihw", "nchw"};
    // Throws, with the library's reason, what no layout can do. Backward descriptors want it as a
    // hint; its layouts do not bind them.
    const dnnl::convolution_forward::primitive_desc hint(
        engine, is_forward(pass) ? forward_kind(pass) : dnnl::prop_kind::forward_training,
        algorithm, memory::desc(shapes.src, type, Tag::any),
        memory::desc(shapes.weights, type, Tag::any), memory::desc(shapes.dst, type, Tag::any),
        shapes.strides, shapes.dilates, shapes.pad_begin, shapes.pad_end, attributes);

    for (const auto& variant : kVariants) {
      const memory::desc src(shapes.src, type, variant.src);
      const memory::desc weights(shapes.weights, type,
                                 shapes.grouped ? variant.grouped_weights : variant.weights);
      const memory::desc dst(shapes.dst, type, variant.dst);

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
            dnnl::convolution_forward::primitive_desc(
                engine, forward_kind(pass), algorithm, src, weights, dst, shapes.strides,
                shapes.dilates, shapes.pad_begin, shapes.pad_end, attributes, true),
            [&](const auto& d) {
              append(d, {{DNNL_ARG_SRC, "src", d.src_desc(), plain_src, false},
                         {DNNL_ARG_WEIGHTS, "weights", d.weights_desc(), plain_weights, false},
                         {DNNL_ARG_DST, "dst", d.dst_desc(), plain_dst, true}});
            });
        continue;
      }
      if (pass == Pass::backward_data) {
        for_each_implementation(
            dnnl::convolution_backward_data::primitive_desc(
                engine, algorithm, src, weights, dst, shapes.strides, shapes.dilates,
                shapes.pad_begin, shapes.pad_end, hint, attributes, true),
            [&](const auto& d) {
              append(d, {{DNNL_ARG_DIFF_SRC, "src", d.diff_src_desc(), plain_src, true},
                         {DNNL_ARG_WEIGHTS, "weights", d.weights_desc(), plain_weights, false},
                         {DNNL_ARG_DIFF_DST, "dst", d.diff_dst_desc(), plain_dst, false}});
            });
      } else {
        for_each_implementation(
            dnnl::convolution_backward_weights::primitive_desc(
                engine, algorithm, src, weights, dst, shapes.strides, shapes.dilates,
                shapes.pad_begin, shapes.pad_end, hint, attributes, true),
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
