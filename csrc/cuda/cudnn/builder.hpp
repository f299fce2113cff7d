// The descriptors that an operation graph consists of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/problem.hpp"
#include "cuda/cudnn/descriptor.hpp"
#include "cuda/cudnn/library.hpp"
#include "cuda/tensor.hpp"

namespace pydlbench::cuda::cudnn {

// cudaMalloc aligns to more, but strides may not be multiples of that.
inline constexpr std::int64_t kTensorAlignment = 16;

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
        .set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, std::vector<std::int64_t>{kTensorAlignment});
    if (is_virtual) tensor.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, true);
    tensor.finalize();
    return tensor;
  }

  // A number on the host, whose address is in the variant pack.
  Descriptor& scalar(std::int64_t name, DataType type, const std::string& what) {
    auto& tensor = make(CUDNN_BACKEND_TENSOR_DESCRIPTOR, what);
    const std::vector<std::int64_t> ones(4, 1);
    tensor.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, std::vector<std::int64_t>{name})
        .set(CUDNN_ATTR_TENSOR_DATA_TYPE, type_of(type))
        .set(CUDNN_ATTR_TENSOR_DIMENSIONS, ones)
        .set(CUDNN_ATTR_TENSOR_STRIDES, ones)
        .set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, std::vector<std::int64_t>{kTensorAlignment})
        .set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, true);
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

}  // namespace pydlbench::cuda::cudnn
