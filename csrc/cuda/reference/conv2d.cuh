// Every element of a convolution in float64, as it is defined: one thread per element, or one block
// per element of the weights' gradient, whose sums run over all images and pixels.
#pragma once

#include <cstdint>

#include "cuda/reference/deviation.cuh"

namespace pydlbench::cuda::reference {

__device__ inline Sum conv2d_forward(const Conv2dCheck& what, std::int64_t index) {
  const auto& p = what.problem;
  const auto ow = index % p.out_width, oh = index / p.out_width % p.out_height;
  const auto plane = index / (p.out_width * p.out_height);
  const auto oc = plane % p.out_channels, n = plane / p.out_channels;
  const auto ins = p.in_channels / p.groups, outs = p.out_channels / p.groups;
  const auto taps = p.kernel_height * p.kernel_width, pixels = p.in_height * p.in_width;
  const float* src = what.src + (n * p.in_channels + oc / outs * ins) * pixels;
  const float* weights = what.weights + oc * ins * taps;
  Sum sum{0.0, 0.0};
  for (std::int64_t kh = 0; kh < p.kernel_height; ++kh) {
    const auto ih = oh * p.stride_height + kh * p.dilation_height - p.pad_top;
    if (ih < 0 || ih >= p.in_height) continue;
    for (std::int64_t kw = 0; kw < p.kernel_width; ++kw) {
      const auto iw = ow * p.stride_width + kw * p.dilation_width - p.pad_left;
      if (iw < 0 || iw >= p.in_width) continue;
      const float* x = src + ih * p.in_width + iw;
      const float* w = weights + kh * p.kernel_width + kw;
      for (std::int64_t c = 0; c < ins; ++c) {
        sum.add(static_cast<double>(x[c * pixels]) * static_cast<double>(w[c * taps]));
      }
    }
  }
  if (what.fused) sum.add(static_cast<double>(what.bias[oc]));
  return sum;
}

__device__ inline Sum conv2d_backward_data(const Conv2dCheck& what, std::int64_t index) {
  const auto& p = what.problem;
  const auto iw = index % p.in_width, ih = index / p.in_width % p.in_height;
  const auto plane = index / (p.in_width * p.in_height);
  const auto ic = plane % p.in_channels, n = plane / p.in_channels;
  const auto ins = p.in_channels / p.groups, outs = p.out_channels / p.groups;
  const auto taps = p.kernel_height * p.kernel_width, pixels = p.out_height * p.out_width;
  const auto first = ic / ins * outs;  // output channel of the group
  const float* dst = what.dst + (n * p.out_channels + first) * pixels;
  const float* weights = what.weights + (first * ins + ic % ins) * taps;
  Sum sum{0.0, 0.0};
  for (std::int64_t kh = 0; kh < p.kernel_height; ++kh) {
    const auto row = ih + p.pad_top - kh * p.dilation_height, oh = row / p.stride_height;
    if (row < 0 || row % p.stride_height != 0 || oh >= p.out_height) continue;
    for (std::int64_t kw = 0; kw < p.kernel_width; ++kw) {
      const auto column = iw + p.pad_left - kw * p.dilation_width, ow = column / p.stride_width;
      if (column < 0 || column % p.stride_width != 0 || ow >= p.out_width) continue;
      const float* y = dst + oh * p.out_width + ow;
      const float* w = weights + kh * p.kernel_width + kw;
      for (std::int64_t o = 0; o < outs; ++o) {
        sum.add(static_cast<double>(y[o * pixels]) * static_cast<double>(w[o * ins * taps]));
      }
    }
  }
  return sum;
}

// A thread's share of the sum: every blockDim.x-th pixel of the result, counted on without a
// division each time.
__device__ inline Sum conv2d_backward_weights(const Conv2dCheck& what, std::int64_t index) {
  const auto& p = what.problem;
  const auto ins = p.in_channels / p.groups, outs = p.out_channels / p.groups;
  const auto kw = index % p.kernel_width, kh = index / p.kernel_width % p.kernel_height;
  const auto filter = index / (p.kernel_width * p.kernel_height);
  const auto oc = filter / ins, ic = oc / outs * ins + filter % ins;
  const auto down = kh * p.dilation_height - p.pad_top, right = kw * p.dilation_width - p.pad_left;
  const auto rows = static_cast<int>(p.out_height), columns = static_cast<int>(p.out_width);
  const int step = static_cast<int>(blockDim.x);
  const int step_n = step / (rows * columns), step_h = step / columns % rows,
            step_w = step % columns;
  int ow = static_cast<int>(threadIdx.x), oh = 0;
  std::int64_t n = 0;
  oh = ow / columns;
  ow -= oh * columns;
  n = oh / rows;
  oh -= static_cast<int>(n) * rows;
  Sum sum{0.0, 0.0};
  while (n < p.batch) {
    const auto ih = oh * p.stride_height + down, iw = ow * p.stride_width + right;
    if (ih >= 0 && ih < p.in_height && iw >= 0 && iw < p.in_width) {
      const auto x = what.src[((n * p.in_channels + ic) * p.in_height + ih) * p.in_width + iw];
      const auto y = what.dst[((n * p.out_channels + oc) * rows + oh) * columns + ow];
      sum.add(static_cast<double>(x) * static_cast<double>(y));
    }
    ow += step_w;
    if (ow >= columns) {
      ow -= columns;
      ++oh;
    }
    oh += step_h;
    if (oh >= rows) {
      oh -= rows;
      ++n;
    }
    n += step_n;
  }
  return sum;
}

// Three blocks per multiprocessor: left alone, the compiler spends registers for one, and the loads
// of eight warps do not hide their latency.
__global__ void __launch_bounds__(kCheckThreads, 3)
    conv2d_check_kernel(Conv2dCheck what, std::int64_t first, std::int64_t last,
                        Deviation* records) {
  auto worst = nothing_compared();
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (auto i = first + static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < last;
       i += step) {
    const auto sum =
        what.pass == Pass::backward_data ? conv2d_backward_data(what, i) : conv2d_forward(what, i);
    worst = both(worst, judge(what.output, i, sum, what.fused));
  }
  record(worst, records);
}

__global__ void conv2d_check_weights_kernel(Conv2dCheck what, std::int64_t first, std::int64_t last,
                                            Deviation* records) {
  auto worst = nothing_compared();
  for (auto i = first + blockIdx.x; i < last; i += gridDim.x) {
    const auto sum = block_sum(conv2d_backward_weights(what, i));
    if (threadIdx.x == 0) worst = both(worst, judge(what.output, i, sum, false));
  }
  record(worst, records);
}

inline void launch_check(const Conv2dCheck& what, Deviation* records, cudaStream_t stream,
                         std::int64_t terms_per_launch = kTermsPerLaunch) {
  const auto& p = what.problem;
  const auto ins = p.in_channels / p.groups, outs = p.out_channels / p.groups;
  const auto taps = p.kernel_height * p.kernel_width;
  clear_records(records, stream);
  if (what.pass == Pass::backward_weights) {
    in_launches(p.out_channels * ins * taps, p.batch * p.out_height * p.out_width, 1,
                terms_per_launch, [&](std::int64_t first, std::int64_t last, dim3 blocks) {
                  launch(conv2d_check_weights_kernel, blocks, dim3(kCheckThreads), 0, stream, what,
                         first, last, records);
                });
    return;
  }
  const bool data = what.pass == Pass::backward_data;
  const auto elements = data ? p.batch * p.in_channels * p.in_height * p.in_width
                             : p.batch * p.out_channels * p.out_height * p.out_width;
  in_launches(elements, (data ? outs : ins) * taps, kCheckThreads, terms_per_launch,
              [&](std::int64_t first, std::int64_t last, dim3 blocks) {
                launch(conv2d_check_kernel, blocks, dim3(kCheckThreads), 0, stream, what, first,
                       last, records);
              });
}

}  // namespace pydlbench::cuda::reference
