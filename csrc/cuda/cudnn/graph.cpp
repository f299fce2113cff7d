#include "cuda/cudnn/graph.hpp"

#include <utility>

#include "core/error.hpp"

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

// cudaMalloc aligns to more, but strides may not be multiples of that.
constexpr std::int64_t kAlignment = 16;

// Keeps descriptors at fixed addresses while others refer to them.
class Builder {
 public:
  explicit Builder(std::size_t most) { parts.reserve(most); }

  Descriptor& make(cudnnBackendDescriptorType_t type, const std::string& what) {
    PYDLBENCH_CHECK(parts.size() < parts.capacity(), "more descriptors than foreseen");
    return parts.emplace_back(type, "cuDNN " + what);
  }

  Descriptor& tensor(std::int64_t name, const TensorSpec& spec, bool is_virtual = false) {
    auto& tensor = make(CUDNN_BACKEND_TENSOR_DESCRIPTOR, "tensor " + spec.role);
    tensor.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, std::vector<std::int64_t>{name})
        .set(CUDNN_ATTR_TENSOR_DATA_TYPE, type_of(spec.type))
        .set(CUDNN_ATTR_TENSOR_DIMENSIONS, spec.dims)
        .set(CUDNN_ATTR_TENSOR_STRIDES, spec.strides)
        .set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, std::vector<std::int64_t>{kAlignment});
    if (is_virtual) tensor.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, true);
    tensor.finalize();
    return tensor;
  }

  Descriptor& convolution(const ConvProblem& p, DataType compute) {
    const auto side_sizes = [&](const std::int64_t (&sizes)[kMaxSides]) {
      return std::vector<std::int64_t>(sizes, sizes + p.sides);
    };
    auto& convolution = make(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, "convolution");
    convolution.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, type_of(compute))
        .set_enum(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE,
                  CUDNN_CROSS_CORRELATION)
        .set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, std::vector<std::int64_t>{p.sides})
        .set(CUDNN_ATTR_CONVOLUTION_DILATIONS, side_sizes(p.dilation))
        .set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, side_sizes(p.stride))
        .set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, side_sizes(p.pad_before))
        .set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, side_sizes(p.pad_after));
    convolution.finalize();
    return convolution;
  }

  Descriptor& pointwise(cudnnPointwiseMode_t mode, const Descriptor& x, const Descriptor* b,
                        const Descriptor& y) {
    auto& how = make(CUDNN_BACKEND_POINTWISE_DESCRIPTOR, "pointwise");
    how.set_enum(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode)
        .set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_DATA_FLOAT);
    how.finalize();
    auto& operation = make(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, "pointwise operation");
    operation.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how)
        .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (b != nullptr) operation.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, *b);
    operation.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    operation.finalize();
    return operation;
  }

  std::vector<Descriptor> parts;
};

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
