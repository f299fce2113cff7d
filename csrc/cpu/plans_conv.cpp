// Plans of convolutions and transposed convolutions: layouts x implementations for the four
// propagation kinds. Both have the same fields, shapes and passes; oneDNN calls the latter
// deconvolutions.
#include <string>
#include <vector>

#include "cpu/fused.hpp"
#include "cpu/images.hpp"
#include "cpu/plans.hpp"

namespace pydlbench::cpu {

namespace {

using dnnl::memory;
using Tag = dnnl::memory::format_tag;

// Tags of weights by number of sides, without and with groups.
struct WeightsTag {
  ImageTag single, grouped;
};

constexpr WeightsTag kAny{image::any, image::any};
constexpr WeightsTag kOutIn{{{Tag::oiw, Tag::oihw, Tag::oidhw}},
                            {{Tag::goiw, Tag::goihw, Tag::goidhw}}};
constexpr WeightsTag kInOut{{{Tag::bac, Tag::iohw, Tag::iodhw}},
                            {{Tag::acbd, Tag::giohw, Tag::giodhw}}};
constexpr WeightsTag kSidesInOut{{{Tag::wio, Tag::hwio, Tag::dhwio}},
                                 {{Tag::wigo, Tag::hwigo, Tag::dhwigo}}};
constexpr WeightsTag kOutSidesIn{{{Tag::owi, Tag::ohwi, Tag::odhwi}},
                                 {{Tag::gowi, Tag::gohwi, Tag::godhwi}}};

struct Variant {
  const char* name;
  ImageTag src;
  WeightsTag weights;
  ImageTag dst;
};

// The library's first choice is often not its fastest, so the layouts of networks are tried, too:
// channels last and channels first with packed weights, channels first to blocked (a first layer
// with three channels), blocked throughout, and the frameworks' plain weights.
struct Convolution {
  using Forward = dnnl::convolution_forward;
  using BackwardData = dnnl::convolution_backward_data;
  using BackwardWeights = dnnl::convolution_backward_weights;
  static constexpr auto algorithm = dnnl::algorithm::convolution_direct;
  static constexpr const char* name = "convolution";
  // The caller's layout: (out, in, height, width).
  static constexpr WeightsTag plain_weights = kOutIn;
  static constexpr Variant variants[] = {
      {"any", image::any, kAny, image::any},
      {"nhwc", image::channels_last, kAny, image::channels_last},
      {"nhwc", image::channels_last, kSidesInOut, image::channels_last},
      {"nhwc", image::channels_last, kOutSidesIn, image::channels_last},
      {"nchw", image::channels_first, kAny, image::channels_first},
      {"nchw", image::channels_first, kOutIn, image::channels_first},
      {"blocked", image::blocks_of_16, kAny, image::blocks_of_16},
      {"blocked", image::blocks_of_8, kAny, image::blocks_of_8},
      {"blocked", image::channels_first, kAny, image::blocks_of_16},
      {"blocked", image::channels_first, kAny, image::blocks_of_8},
  };
};

// Logically the weights are (out, in) as for convolutions; the caller's and the frameworks' arrays
// are (in, out, height, width).
struct TransposedConvolution {
  using Forward = dnnl::deconvolution_forward;
  using BackwardData = dnnl::deconvolution_backward_data;
  using BackwardWeights = dnnl::deconvolution_backward_weights;
  static constexpr auto algorithm = dnnl::algorithm::deconvolution_direct;
  static constexpr const char* name = "deconvolution";
  static constexpr WeightsTag plain_weights = kInOut;
  static constexpr Variant variants[] = {
      {"any", image::any, kAny, image::any},
      {"nhwc", image::channels_last, kAny, image::channels_last},
      {"nhwc", image::channels_last, kSidesInOut, image::channels_last},
      {"nchw", image::channels_first, kAny, image::channels_first},
      {"nchw", image::channels_first, kInOut, image::channels_first},
      {"blocked", image::blocks_of_16, kAny, image::blocks_of_16},
      {"blocked", image::blocks_of_8, kAny, image::blocks_of_8},
  };
};

struct Shapes {
  int sides;
  memory::dims src, weights, dst, strides, dilates, pad_begin, pad_end;
  bool grouped;

  explicit Shapes(const ConvProblem& p)
      : sides(p.sides),
        src(image_dims(p.batch, p.in_channels, p.in_size, p.sides)),
        weights(image_dims(p.out_channels / p.groups, p.in_channels / p.groups, p.kernel, p.sides)),
        dst(image_dims(p.batch, p.out_channels, p.out_size, p.sides)),
        strides(side_sizes(p.stride, p.sides)),
        dilates(dilations(p)),
        pad_begin(side_sizes(p.pad_before, p.sides)),
        pad_end(side_sizes(p.pad_after, p.sides)),
        grouped(p.groups > 1) {
    if (grouped) weights.insert(weights.begin(), p.groups);
  }

  Tag tag(const ImageTag& images) const { return images.of(sides); }
  Tag tag(const WeightsTag& tags) const { return (grouped ? tags.grouped : tags.single).of(sides); }
};

template <typename Primitive>
std::vector<Candidate> planned_in_all_layouts(const Fields& given, Pass pass, Precision precision,
                                              bool /*thorough*/) {
  auto fields = given;
  const FusedOps fused(fields, precision);
  const Shapes shapes(problem_of<ConvProblem>(fields));
  const auto types = fused.types();
  const std::string primitive = std::string(Primitive::name) + " " + name_of(pass);

  return planned(primitive, [&](std::vector<Candidate>& candidates) {
    const auto f32 = memory::data_type::f32;
    const auto plain_images = shapes.tag(image::channels_first);
    const PlainTensors plain{{shapes.src, f32, plain_images},
                             {shapes.weights, f32, shapes.tag(Primitive::plain_weights)},
                             {shapes.dst, fused.plain_type(), plain_images}};
    const FusedShape fused_shape{plain.dst, 1, shapes.grouped ? 3 : 1, {shapes.dst[1]}};
    const auto attributes = fused.attributes(fused_shape);
    const auto bias = fused.bias(fused_shape);
    auto& engine = cpu_engine();
    const auto of_images = with_sides("nc", shapes.sides);
    const std::vector<std::string> letters{
        of_images, with_sides(shapes.grouped ? "goi" : "oi", shapes.sides), of_images};
    // Throws if no layout is supported, with the library's reason. It is the hint of backward
    // descriptors, but does not determine their layouts.
    const typename Primitive::Forward::primitive_desc hint(
        engine, is_forward(pass) ? forward_kind(pass) : dnnl::prop_kind::forward_training,
        Primitive::algorithm, memory::desc(shapes.src, types.src, Tag::any),
        memory::desc(shapes.weights, types.weights, Tag::any), bias,
        memory::desc(shapes.dst, types.dst, Tag::any), shapes.strides, shapes.dilates,
        shapes.pad_begin, shapes.pad_end, attributes);

    for (const auto& variant : Primitive::variants) {
      const memory::desc src(shapes.src, types.src, shapes.tag(variant.src));
      const memory::desc weights(shapes.weights, types.weights, shapes.tag(variant.weights));
      const memory::desc dst(shapes.dst, types.dst, shapes.tag(variant.dst));

      const auto append = [&](const auto& descriptor, std::vector<Argument> arguments) {
        Candidate candidate{};
        candidate.primitive = primitive;
        candidate.variant = variant.name;
        fused.append(descriptor, fused_shape, arguments);
        candidate.run = {descriptor, std::move(arguments)};
        append_new(candidates, std::move(candidate), letters);
      };

      if (is_forward(pass)) {
        for_each_implementation(
            typename Primitive::Forward::primitive_desc(
                engine, forward_kind(pass), Primitive::algorithm, src, weights, bias, dst,
                shapes.strides, shapes.dilates, shapes.pad_begin, shapes.pad_end, attributes, true),
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

const Kind conv("conv", planned_in_all_layouts<Convolution>);
const Kind deconv("deconv", planned_in_all_layouts<TransposedConvolution>);

}  // namespace

}  // namespace pydlbench::cpu
