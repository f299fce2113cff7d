// Activations except ReLU, and their gradients. A thread selects the activation once per vector.
#include <cmath>

#include "cuda/pointwise/elementwise.cuh"

namespace pydlbench::cuda::pointwise {

namespace {

constexpr float kRootHalf = 0.70710678f, kDensity = 0.39894228f;  // 1 / sqrt(2), 1 / sqrt(2 pi)
constexpr float kTanhFactor = 0.79788456f, kCubic = 0.044715f;    // sqrt(2 / pi)

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// log(1 + e^x), without an overflow of the exponential.
__device__ __forceinline__ float softplus(float x) {
  return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
}

__device__ __forceinline__ float gelu_tanh(float x) {
  return tanhf(kTanhFactor * (x + kCubic * x * x * x));
}

template <Activation which>
__device__ __forceinline__ float value(float x, Bounds bounds) {
  if constexpr (which == Activation::clip) return fminf(fmaxf(x, bounds.low), bounds.high);
  if constexpr (which == Activation::hardsigmoid) return fminf(fmaxf(x + 3.0f, 0.0f), 6.0f) / 6.0f;
  if constexpr (which == Activation::hardswish)
    return x * value<Activation::hardsigmoid>(x, bounds);
  if constexpr (which == Activation::sigmoid) return sigmoid(x);
  if constexpr (which == Activation::tanh) return tanhf(x);
  if constexpr (which == Activation::softplus) return softplus(x);
  if constexpr (which == Activation::elu) return x > 0.0f ? x : expm1f(x);
  if constexpr (which == Activation::silu) return x * sigmoid(x);
  if constexpr (which == Activation::mish) return x * tanhf(softplus(x));
  if constexpr (which == Activation::gelu) return 0.5f * x * (1.0f + erff(x * kRootHalf));
  return 0.5f * x * (1.0f + gelu_tanh(x));
}

template <Activation which>
__device__ __forceinline__ float slope(float x, Bounds bounds) {
  if constexpr (which == Activation::clip) return x > bounds.low && x < bounds.high ? 1.0f : 0.0f;
  if constexpr (which == Activation::hardsigmoid) return fabsf(x) < 3.0f ? 1.0f / 6.0f : 0.0f;
  if constexpr (which == Activation::hardswish) {
    return fabsf(x) < 3.0f ? x / 3.0f + 0.5f : x > 0.0f ? 1.0f : 0.0f;
  }
  if constexpr (which == Activation::sigmoid) return sigmoid(x) * sigmoid(-x);
  if constexpr (which == Activation::tanh) return 1.0f - tanhf(x) * tanhf(x);
  if constexpr (which == Activation::softplus) return sigmoid(x);
  if constexpr (which == Activation::elu) return x > 0.0f ? 1.0f : expf(x);
  if constexpr (which == Activation::silu) return sigmoid(x) * (1.0f + x * sigmoid(-x));
  if constexpr (which == Activation::mish) {
    const float t = tanhf(softplus(x));
    return t + x * sigmoid(x) * (1.0f - t * t);
  }
  if constexpr (which == Activation::gelu) {
    return 0.5f * (1.0f + erff(x * kRootHalf)) + x * kDensity * expf(-0.5f * x * x);
  }
  const float t = gelu_tanh(x);
  return 0.5f * (1.0f + t) +
         0.5f * x * (1.0f - t * t) * kTanhFactor * (1.0f + 3.0f * kCubic * x * x);
}

// Calls f with the activation as a compile-time constant.
template <typename F>
__device__ __forceinline__ void with_activation(Activation which, F&& f) {
#define PYDLBENCH_CASE(name) \
  case Activation::name:     \
    return f(std::integral_constant<Activation, Activation::name>{})
  switch (which) {
    PYDLBENCH_CASE(clip);
    PYDLBENCH_CASE(hardsigmoid);
    PYDLBENCH_CASE(hardswish);
    PYDLBENCH_CASE(sigmoid);
    PYDLBENCH_CASE(tanh);
    PYDLBENCH_CASE(softplus);
    PYDLBENCH_CASE(elu);
    PYDLBENCH_CASE(silu);
    PYDLBENCH_CASE(mish);
    PYDLBENCH_CASE(gelu);
    PYDLBENCH_CASE(gelu_tanh);
  }
#undef PYDLBENCH_CASE
}

struct Value {
  static constexpr int kInputs = 1, kOutputs = 1;
  Activation which;
  Bounds bounds;
  template <int n>
  __device__ __forceinline__ void operator()(std::int64_t, const float (&in)[1][n],
                                             float (&out)[1][n]) const {
    with_activation(which, [&](auto constant) {
#pragma unroll
      for (int i = 0; i < n; ++i) out[0][i] = value<decltype(constant)::value>(in[0][i], bounds);
    });
  }
};

struct Gradient {
  static constexpr int kInputs = 2, kOutputs = 1;
  Activation which;
  Bounds bounds;
  template <int n>
  __device__ __forceinline__ void operator()(std::int64_t, const float (&in)[2][n],
                                             float (&out)[1][n]) const {
    with_activation(which, [&](auto constant) {
#pragma unroll
      for (int i = 0; i < n; ++i) {
        out[0][i] = slope<decltype(constant)::value>(in[0][i], bounds) * in[1][i];
      }
    });
  }
};

}  // namespace

void activation_forward(DataType type, const Tiling& tiling, std::int64_t count, Activation which,
                        Bounds bounds, const void* src, void* dst, CUstream_st* stream) {
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    launch_elementwise<T>(Value{which, bounds},
                          {{static_cast<const T*>(src)}, {static_cast<T*>(dst)}}, count, tiling,
                          stream);
  });
}

void activation_backward(DataType type, const Tiling& tiling, std::int64_t count, Activation which,
                         Bounds bounds, const void* src, const void* ddst, void* dsrc,
                         CUstream_st* stream) {
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    launch_elementwise<T>(
        Gradient{which, bounds},
        {{static_cast<const T*>(src), static_cast<const T*>(ddst)}, {static_cast<T*>(dsrc)}}, count,
        tiling, stream);
  });
}

}  // namespace pydlbench::cuda::pointwise
