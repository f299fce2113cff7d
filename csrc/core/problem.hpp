// Problems, independent of the library that computes them. Sizes are in elements.
//
// A problem has the fields of the layer of the same kind in pydlbench.ops, with the same names.
// `fields` lists the sizes among them, so that core/fields.hpp can fill a problem by name.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace pydlbench {

enum class Pass { forward_inference, forward_training, backward_data, backward_weights };
// In int8, the types of the tensors are fields of the problem.
enum class Precision { fp32, bf16, fp16, int8 };
enum class PoolMode { max, avg_include_padding, avg_exclude_padding };

constexpr bool is_forward(Pass pass) {
  return pass == Pass::forward_inference || pass == Pass::forward_training;
}

// The name of a pass in Python and in messages; both forward passes are "forward".
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

inline constexpr int kMaxSides = 3;

// Windows that slide over images of one to three sides, the outermost first: (depth, height,
// width). Each array has `sides` numbers. A dilation of 1 is dense; padding may differ between the
// two ends of a side. Plain data: kernels on GPUs take problems by value.
struct Windows {
  int sides;
  std::int64_t in_size[kMaxSides], out_size[kMaxSides], kernel[kMaxSides], stride[kMaxSides],
      dilation[kMaxSides], pad_before[kMaxSides], pad_after[kMaxSides];

  struct SideField {
    using Sizes = std::int64_t (Windows::*)[kMaxSides];
    const char* name;
    Sizes sizes;
  };
  static constexpr SideField side_fields[] = {
      {"in_size", &Windows::in_size},     {"out_size", &Windows::out_size},
      {"kernel", &Windows::kernel},       {"stride", &Windows::stride},
      {"dilation", &Windows::dilation},   {"pad_before", &Windows::pad_before},
      {"pad_after", &Windows::pad_after},
  };
};

// A convolution. in_channels and out_channels count the channels of all groups. A transposed
// convolution has the same fields; its padding crops the result.
struct ConvProblem : Windows {
  std::int64_t batch, in_channels, out_channels, groups;

  static constexpr Field<ConvProblem> fields[] = {
      {"batch", &ConvProblem::batch},
      {"in_channels", &ConvProblem::in_channels},
      {"out_channels", &ConvProblem::out_channels},
      {"groups", &ConvProblem::groups},
  };
};

// A pooling of each channel. Padding never wins a maximum.
struct PoolProblem : Windows {
  std::int64_t batch, channels;
  PoolMode mode;  // in Python two fields: mode and count_include_pad

  static constexpr Field<PoolProblem> fields[] = {
      {"batch", &PoolProblem::batch},
      {"channels", &PoolProblem::channels},
  };
};

// Matrix products: dst[m, n] = src[m, k] x weights[k, n] in the forward pass, for each index of a
// batch with any number of dimensions, which are broadcast as in NumPy.
struct GemmProblem {
  std::int64_t m, k, n;
  std::vector<std::int64_t> src_batch, weights_batch;
  std::string weights_tag;  // required layout: "kn" or "nk", or "any"

  static constexpr Field<GemmProblem> fields[] = {
      {"m", &GemmProblem::m},
      {"k", &GemmProblem::k},
      {"n", &GemmProblem::n},
  };
};

// Scaled dot-product attention: several heads of queries may share one of keys and values.
struct AttentionProblem {
  std::int64_t batch, heads, kv_heads, queries, keys, size, value_size;
  bool causal;

  static constexpr Field<AttentionProblem> fields[] = {
      {"batch", &AttentionProblem::batch},
      {"heads", &AttentionProblem::heads},
      {"kv_heads", &AttentionProblem::kv_heads},
      {"queries", &AttentionProblem::queries},
      {"keys", &AttentionProblem::keys},
      {"size", &AttentionProblem::size},
      {"value_size", &AttentionProblem::value_size},
  };
};

// A memory-bound layer: an operation on NCHW images, or on one tensor of weights (of `channels`
// elements). Roles, formulas and passes are as in pydlbench.ops.pointwise.
struct PointwiseProblem {
  std::string op;  // "relu", "batchnorm", ...
  std::int64_t batch, channels, height, width;
  std::vector<std::string> passes;        // passes of the operation
  bool in_one_order;                      // its tensors have one layout only
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
