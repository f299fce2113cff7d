// Plans of convolutions and of transposed ones: layouts x implementations for the four propagation
// kinds. Both have the same fields, shapes and passes; oneDNN calls the latter deconvolutions.
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
struct Convolution {
  using Forward = dnnl::convolution_forward;
  using BackwardData = dnnl::convolution_backward_data;
  using BackwardWeights = dnnl::convolution_backward_weights;
  static constexpr auto algorithm = dnnl::algorithm::convolution_direct;
  static constexpr const char* name = "convolution";
  // As the caller holds them: (out, in, height, width).
  static constexpr Tag plain_weights = Tag::oihw, plain_grouped_weights = Tag::goihw;
  static constexpr Variant variants[] = {
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
};

// Logically the weights are (out, in) as those of convolutions; the caller and frameworks hold them
// as (in, out, height, width), which is "iohw".
struct TransposedConvolution {
  using Forward = dnnl::deconvolution_forward;
  using BackwardData = dnnl::deconvolution_backward_data;
  using BackwardWeights = dnnl::deconvolution_backward_weights;
  static constexpr auto algorithm = dnnl::algorithm::deconvolution_direct;
  static constexpr const char* name = "deconvolution";
  static constexpr Tag plain_weights = Tag::iohw, plain_grouped_weights = Tag::giohw;
  static constexpr Variant variants[] = {
      {"any", Tag::any, Tag::any, Tag::any, Tag::any},
      {"nhwc", Tag::nhwc, Tag::any, Tag::any, Tag::nhwc},
      {"nhwc", Tag::nhwc, Tag::hwio, Tag::hwigo, Tag::nhwc},
      {"nchw", Tag::nchw, Tag::any, Tag::any, Tag::nchw},
      {"nchw", Tag::nchw, Tag::iohw, Tag::giohw, Tag::nchw},
      {"blocked", Tag::nChw16c, Tag::any, Tag::any, Tag::nChw16c},
      {"blocked", Tag::nChw8c, Tag::any, Tag::any, Tag::nChw8c},
  };
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

template <typename Primitive>
std::vector<Candidate> planned_in_all_layouts(const Fields& fields, Pass pass, Precision precision,
                                              bool /*thorough*/) {
  const Shapes shapes(problem_of<Conv2dProblem>(fields));
  const auto type = data_type(precision);
  const std::string primitive = std::string(Primitive::name) + " " + name_of(pass);

  return planned(primitive, [&](std::vector<Candidate>& candidates) {
    const auto f32 = memory::data_type::f32;
    const auto plain_weights =
        shapes.grouped ? Primitive::plain_grouped_weights : Primitive::plain_weights;
    const PlainTensors plain{{shapes.src, f32, Tag::nchw},
                             {shapes.weights, f32, plain_weights},
                             {shapes.dst, f32, Tag::nchw}};
    const auto attributes = user_scratchpad();
    auto& engine = cpu_engine();
    const std::vector<std::string> letters{"nchw", shapes.grouped ? "goihw" : "oihw", "nchw"};
    // Throws, with the library's reason, what no layout can do. Backward descriptors want it as a
    // hint; its layouts do not bind them.
    const typename Primitive::Forward::primitive_desc hint(
        engine, is_forward(pass) ? forward_kind(pass) : dnnl::prop_kind::forward_training,
        Primitive::algorithm, memory::desc(shapes.src, type, Tag::any),
        memory::desc(shapes.weights, type, Tag::any), memory::desc(shapes.dst, type, Tag::any),
        shapes.strides, shapes.dilates, shapes.pad_begin, shapes.pad_end, attributes);

    for (const auto& variant : Primitive::variants) {
      const memory::desc src(shapes.src, type, variant.src);
      const memory::desc weights(shapes.weights, type,
                                 shapes.grouped ? variant.grouped_weights : variant.weights);
      const memory::desc dst(shapes.dst, type, variant.dst);

      const auto append = [&](const auto& descriptor, std::vector<Argument> arguments) {
        Candidate candidate{};
        candidate.primitive = primitive;
        candidate.variant = variant.name;
        candidate.run = {descriptor, std::move(arguments)};
        append_new(candidates, std::move(candidate), letters);
      };

      if (is_forward(pass)) {
        for_each_implementation(
            typename Primitive::Forward::primitive_desc(
                engine, forward_kind(pass), Primitive::algorithm, src, weights, dst, shapes.strides,
                shapes.dilates, shapes.pad_begin, shapes.pad_end, attributes, true),
            [&](const auto& d) { append(d, forward_arguments(d, plain)); });
      } else if (pass == Pass::backward_data) {
        for_each_implementation(
            typename Primitive::BackwardData::primitive_desc(
                engine, Primitive::algorithm, src, weights, dst, shapes.strides, shapes.dilates,
                shapes.pad_begin, shapes.pad_end, hint, attributes, true),
            [&](const auto& d) { append(d, backward_data_arguments(d, plain)); });
      } else {
        for_each_implementation(
            typename Primitive::BackwardWeights::primitive_desc(
                engine, Primitive::algorithm, src, weights, dst, shapes.strides, shapes.dilates,
                shapes.pad_begin, shapes.pad_end, hint, attributes, true),
            [&](const auto& d) { append(d, backward_weights_arguments(d, plain)); });
      }
    }
  });
}

const Kind conv2d("conv2d", planned_in_all_layouts<Convolution>);
const Kind deconv2d("deconv2d", planned_in_all_layouts<TransposedConvolution>);

}  // namespace

}  // namespace pydlbench::cpu
