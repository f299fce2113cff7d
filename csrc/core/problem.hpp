// What is computed, independent of the library that computes it. Sizes in elements.
#pragma once

#include <cstdint>
#include <string>

namespace pydlbench {

enum class Pass { forward_inference, forward_training, backward_data, backward_weights };
enum class Precision { fp32, bf16, fp16 };
enum class PoolMode { max, avg_include_padding, avg_exclude_padding };

// dilation 1 is dense; padding may differ per side; channels divide by groups.
struct Conv2dProblem {
  std::int64_t batch, groups, in_channels, in_height, in_width, out_channels, out_height, out_width,
      kernel_height, kernel_width, stride_height, stride_width, pad_top, pad_left, pad_bottom,
      pad_right, dilation_height, dilation_width;
};

// forward: dst[m, n] = src[m, k] x weights[k, n], batch_count times.
struct GemmProblem {
  std::int64_t batch_count, m, k, n;
};

struct Pool2dProblem {
  std::int64_t batch, channels, in_height, in_width, out_height, out_width, kernel_height,
      kernel_width, stride_height, stride_width, pad_top, pad_left, pad_bottom, pad_right;
  PoolMode mode;
};

}  // namespace pydlbench
