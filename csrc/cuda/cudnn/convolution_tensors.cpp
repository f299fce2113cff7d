// What the caller sees of a convolution: tensors and names. The graph is in convolution_graph.cpp.
#include "cuda/cudnn/convolution_graph.hpp"

namespace pydlbench::cuda::cudnn {

std::vector<TensorSpec> convolution_tensors(const Convolution& convolution) {
  const auto& p = convolution.problem;
  const auto type = storage(convolution.mode);
  const auto tensor = [&](const char* role, std::vector<std::int64_t> dims, bool is_result) {
    const bool last = convolution.layout == Layout::nhwc;
    auto strides = last ? channels_last_strides(dims) : plain_strides(dims);
    return TensorSpec{role, type, std::move(dims), std::move(strides),
                      is_result ? Use::output : Use::input};
  };
  const auto pass = convolution.pass;
  const bool backward_data = pass == Pass::backward_data;
  const bool backward_weights = pass == Pass::backward_weights;
  std::vector<TensorSpec> tensors{
      tensor("src", {p.batch, p.in_channels, p.in_height, p.in_width}, backward_data),
      tensor("weights", {p.out_channels, p.in_channels / p.groups, p.kernel_height, p.kernel_width},
             backward_weights)};
  if (convolution.fused) tensors.push_back(tensor("bias", {1, p.out_channels, 1, 1}, false));
  tensors.push_back(tensor("dst", {p.batch, p.out_channels, p.out_height, p.out_width},
                           !backward_data && !backward_weights));
  return tensors;
}

std::string layout_text(Layout layout) {
  return layout == Layout::nchw ? "src nchw, weights kcrs, dst nchw"
                                : "src nhwc, weights krsc, dst nhwc";
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

}  // namespace pydlbench::cuda::cudnn
