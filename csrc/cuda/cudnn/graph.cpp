#include "cuda/cudnn/graph.hpp"

#include <utility>

#include "cuda/cudnn/builder.hpp"

namespace pydlbench::cuda::cudnn {

std::vector<TensorSpec> convolution_tensors(const Convolution& convolution) {
  const auto& p = convolution.problem;
  const auto tensor = [&](const char* role, std::vector<std::int64_t> dims, bool is_result) {
    const bool last = convolution.layout == Layout::nhwc;
    auto strides = last ? channels_last_strides(dims) : plain_strides(dims);
    const auto type = is_result ? result_type(convolution.mode) : storage(convolution.mode);
    return TensorSpec{role, type, std::move(dims), std::move(strides),
                      is_result ? Use::output : Use::input};
  };
  const auto pass = convolution.pass;
  const bool backward_data = pass == Pass::backward_data;
  const bool backward_weights = pass == Pass::backward_weights;
  const auto images = [&](std::int64_t first, std::int64_t second,
                          const std::int64_t (&sizes)[kMaxSides]) {
    std::vector<std::int64_t> dims{first, second};
    dims.insert(dims.end(), sizes, sizes + p.sides);
    return dims;
  };
  std::vector<TensorSpec> tensors{
      tensor("src", images(p.batch, p.in_channels, p.in_size), backward_data),
      tensor("weights", images(p.out_channels, p.in_channels / p.groups, p.kernel),
             backward_weights)};
  if (convolution.fused) {
    constexpr std::int64_t ones[kMaxSides] = {1, 1, 1};
    tensors.push_back(tensor("bias", images(1, p.out_channels, ones), false));
  }
  tensors.push_back(tensor("dst", images(p.batch, p.out_channels, p.out_size),
                           !backward_data && !backward_weights));
  return tensors;
}

std::string layout_text(const Convolution& convolution) {
  const bool flat = convolution.problem.sides == 2, last = convolution.layout == Layout::nhwc;
  const std::string sides = flat ? "hw" : "dhw", taps = flat ? "rs" : "trs";
  const auto image = last ? "n" + sides + "c" : "nc" + sides;
  return "src " + image + ", weights " + (last ? "k" + taps + "c" : "kc" + taps) + ", dst " + image;
}

std::string primitive_text(const Convolution& convolution) {
  switch (convolution.pass) {
    case Pass::backward_data:
      return "convolution backward data";
    case Pass::backward_weights:
      return "convolution backward weights";
    default:
      return convolution.fused ? "convolution + bias + ReLU forward" : "convolution forward";
  }
}

namespace {

struct ConvolutionAttributes {
  cudnnBackendDescriptorType_t type;
  cudnnBackendAttributeName_t alpha, beta, convolution, weights, src, dst;
};

ConvolutionAttributes attributes(Pass pass) {
  switch (pass) {
    case Pass::backward_data:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY};
    case Pass::backward_weights:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY};
    default:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y};
  }
}

}  // namespace

std::shared_ptr<const OperationGraph> operation_graph(const Convolution& convolution,
                                                      const Target& target) {
  const auto specs = convolution_tensors(convolution);
  Builder builder(16);
  std::vector<std::int64_t> names;
  std::vector<const Descriptor*> tensors;
  for (const auto& spec : specs) {
    names.push_back(static_cast<std::int64_t>(names.size()) + 1);
    tensors.push_back(&builder.tensor(names.back(), spec));
  }
  const auto& dst = *tensors.back();
  // Intermediate results before bias and ReLU: float32, not in memory.
  const auto between = [&](std::int64_t name) -> const Descriptor& {
    auto spec = specs.back();
    spec.role = "intermediate";
    spec.type = DataType::float32;
    return builder.tensor(name, spec, true);
  };
  const auto& result = convolution.fused ? between(101) : dst;

  const auto names_of = attributes(convolution.pass);
  auto& operation = builder.make(names_of.type, primitive_text(convolution));
  operation.set(names_of.alpha, 1.0f)
      .set(names_of.beta, 0.0f)
      .set(names_of.convolution, builder.convolution(convolution.problem, convolution.compute))
      .set(names_of.weights, *tensors[1])
      .set(names_of.src, *tensors[0])
      .set(names_of.dst, result);
  operation.finalize();
  std::vector<const Descriptor*> operations{&operation};
  if (convolution.fused) {
    const auto& biased = between(102);
    operations.push_back(&builder.pointwise(CUDNN_POINTWISE_ADD, result, tensors[2], biased));
    operations.push_back(&builder.pointwise(CUDNN_POINTWISE_RELU_FWD, biased, nullptr, dst));
  }

  Descriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, "cuDNN operation graph");
  target.tell_graph(graph);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, operations);
  graph.finalize();
  return std::make_shared<const OperationGraph>(
      OperationGraph{std::move(graph), std::move(builder.parts), std::move(names)});
}

}  // namespace pydlbench::cuda::cudnn
