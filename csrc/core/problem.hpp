// What is computed, independent of the library that computes it. Sizes are in elements.
//
// Each problem has the fields of the layer of the same kind in pydlbench.layers, under the same
// names; `fields` lists those that are sizes, so that core/fields.hpp can fill a problem by name.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace pydlbench {

enum class Pass { forward_inference, forward_training, backward_data, backward_weights };
enum class Precision { fp32, bf16, fp16 };
enum class PoolMode { max, avg_include_padding, avg_exclude_padding };

constexpr bool is_forward(Pass pass) {
  return pass == Pass::forward_inference || pass == Pass::forward_training;
}

// The pass as Python and all messages call it; both kinds of forward pass are "forward".
constexpr const char* name_of(Pass pass) {
  switch (pass) {
    case Pass::backward_data:
      return "backward-data";
    case Pass::backward_weights:
      return "backward-weights";
    default:
      return "forward";
  }
}

// A size of a problem and its name in Python.
template <typename Problem>
struct Field {
  using Size = std::int64_t Problem::*;
  const char* name;
  Size size;
};

// A convolution. A dilation of 1 is dense; padding may differ on the four sides; `groups` divides
// the channels, of which in_channels and out_channels count those of all groups. A transposed
// convolution has the same fields; its padding cuts off what the windows of the source add up to
// around the result.
struct Conv2dProblem {
  std::int64_t batch, in_channels, in_height, in_width, out_channels, out_height, out_width,
      kernel_height, kernel_width, stride_height, stride_width, pad_top, pad_bottom, pad_left,
      pad_right, dilation_height, dilation_width, groups;

  static constexpr Field<Conv2dProblem> fields[] = {
      {"batch", &Conv2dProblem::batch},
      {"in_channels", &Conv2dProblem::in_channels},
      {"in_height", &Conv2dProblem::in_height},
      {"in_width", &Conv2dProblem::in_width},
      {"out_channels", &Conv2dProblem::out_channels},
      {"out_height", &Conv2dProblem::out_height},
      {"out_width", &Conv2dProblem::out_width},
      {"kernel_height", &Conv2dProblem::kernel_height},
      {"kernel_width", &Conv2dProblem::kernel_width},
      {"stride_height", &Conv2dProblem::stride_height},
      {"stride_width", &Conv2dProblem::stride_width},
      {"pad_top", &Conv2dProblem::pad_top},
      {"pad_bottom", &Conv2dProblem::pad_bottom},
      {"pad_left", &Conv2dProblem::pad_left},
      {"pad_right", &Conv2dProblem::pad_right},
      {"dilation_height", &Conv2dProblem::dilation_height},
      {"dilation_width", &Conv2dProblem::dilation_width},
      {"groups", &Conv2dProblem::groups},
  };
};

// A matrix product, batch_count times: dst[m, n] = src[m, k] x weights[k, n] in the forward pass.
struct GemmProblem {
  std::int64_t m, k, n, batch_count;

  static constexpr Field<GemmProblem> fields[] = {
      {"m", &GemmProblem::m},
      {"k", &GemmProblem::k},
      {"n", &GemmProblem::n},
      {"batch_count", &GemmProblem::batch_count},
  };
};

// A pooling of each channel. Padding may differ on the four sides and never wins a maximum.
struct Pool2dProblem {
  std::int64_t batch, channels, in_height, in_width, out_height, out_width, kernel_height,
      kernel_width, stride_height, stride_width, pad_top, pad_bottom, pad_left, pad_right;
  PoolMode mode;  // in Python two fields: mode and count_include_pad

  static constexpr Field<Pool2dProblem> fields[] = {
      {"batch", &Pool2dProblem::batch},
      {"channels", &Pool2dProblem::channels},
      {"in_height", &Pool2dProblem::in_height},
      {"in_width", &Pool2dProblem::in_width},
      {"out_height", &Pool2dProblem::out_height},
      {"out_width", &Pool2dProblem::out_width},
      {"kernel_height", &Pool2dProblem::kernel_height},
      {"kernel_width", &Pool2dProblem::kernel_width},
      {"stride_height", &Pool2dProblem::stride_height},
      {"stride_width", &Pool2dProblem::stride_width},
      {"pad_top", &Pool2dProblem::pad_top},
      {"pad_bottom", &Pool2dProblem::pad_bottom},
      {"pad_left", &Pool2dProblem::pad_left},
      {"pad_right", &Pool2dProblem::pad_right},
  };
};

// A memory-bound layer: an operation on NCHW images, or on one tensor of weights (of `channels`
// elements). Roles and formulas are those of pydlbench.layers.pointwise.
struct PointwiseProblem {
  std::string op;  // "relu", "batchnorm", ...
  std::int64_t batch, channels, height, width;
  std::map<std::string, double> numbers;  // the operation's parameters: "epsilon", "keep", ...
  std::vector<std::int64_t> sources;      // channels of each source of a concatenation

  static constexpr Field<PointwiseProblem> fields[] = {
      {"batch", &PointwiseProblem::batch},
      {"channels", &PointwiseProblem::channels},
      {"height", &PointwiseProblem::height},
      {"width", &PointwiseProblem::width},
  };
};

}  // namespace pydlbench
