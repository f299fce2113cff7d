// ReLU, the sum of two tensors, weight decay and optimizers.
#include "cuda/pointwise/elementwise.cuh"
#include "cuda/pointwise/reduce.cuh"

namespace pydlbench::cuda::pointwise {

namespace {

struct Relu {
  static constexpr int kInputs = 1, kOutputs = 1;
  template <int n>
  __device__ __forceinline__ void operator()(std::int64_t, const float (&in)[1][n],
                                             float (&out)[1][n]) const {
#pragma unroll
    for (int i = 0; i < n; ++i) out[0][i] = in[0][i] > 0.0f ? in[0][i] : 0.0f;
  }
};

struct ReluGradient {
  static constexpr int kInputs = 2, kOutputs = 1;
  template <int n>
  __device__ __forceinline__ void operator()(std::int64_t, const float (&in)[2][n],
                                             float (&out)[1][n]) const {
#pragma unroll
    for (int i = 0; i < n; ++i) out[0][i] = in[0][i] > 0.0f ? in[1][i] : 0.0f;
  }
};

struct Add {
  static constexpr int kInputs = 2, kOutputs = 1;
  template <int n>
  __device__ __forceinline__ void operator()(std::int64_t, const float (&in)[2][n],
                                             float (&out)[1][n]) const {
#pragma unroll
    for (int i = 0; i < n; ++i) out[0][i] = in[0][i] + in[1][i];
  }
};

}  // namespace

void relu_forward(DataType type, const Tiling& tiling, std::int64_t count, const void* src,
                  void* dst, CUstream_st* stream) {
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    launch_elementwise<T>(Relu{}, {{static_cast<const T*>(src)}, {static_cast<T*>(dst)}}, count,
                          tiling, stream);
  });
}

void relu_backward(DataType type, const Tiling& tiling, std::int64_t count, const void* src,
                   const void* ddst, void* dsrc, CUstream_st* stream) {
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    launch_elementwise<T>(
        ReluGradient{},
        {{static_cast<const T*>(src), static_cast<const T*>(ddst)}, {static_cast<T*>(dsrc)}}, count,
        tiling, stream);
  });
}

void add_forward(DataType type, const Tiling& tiling, std::int64_t count, const void* a,
                 const void* b, void* dst, CUstream_st* stream) {
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    launch_elementwise<T>(
        Add{}, {{static_cast<const T*>(a), static_cast<const T*>(b)}, {static_cast<T*>(dst)}},
        count, tiling, stream);
  });
}

namespace {

struct Decay {
  static constexpr int kInputs = 2, kOutputs = 1;
  float decay;
  template <int n>
  __device__ __forceinline__ void operator()(std::int64_t, const float (&in)[2][n],
                                             float (&out)[1][n]) const {
#pragma unroll
    for (int i = 0; i < n; ++i) out[0][i] = in[0][i] * decay + in[1][i];
  }
};

struct Descent {
  static constexpr int kInputs = 2, kOutputs = 1;
  float rate;
  template <int n>
  __device__ __forceinline__ void operator()(std::int64_t, const float (&in)[2][n],
                                             float (&out)[1][n]) const {
#pragma unroll
    for (int i = 0; i < n; ++i) out[0][i] = in[0][i] - rate * in[1][i];
  }
};

struct Momentum {
  static constexpr int kInputs = 3, kOutputs = 2;
  float rate, mu;
  template <int n>
  __device__ __forceinline__ void operator()(std::int64_t, const float (&in)[3][n],
                                             float (&out)[2][n]) const {
#pragma unroll
    for (int i = 0; i < n; ++i) {
      out[1][i] = mu * in[1][i] + in[2][i];
      out[0][i] = in[0][i] - rate * out[1][i];
    }
  }
};

struct Square {
  static __device__ __forceinline__ float of(float x) { return x * x; }
};

}  // namespace

void l2_backward(DataType type, const Tiling& tiling, std::int64_t count, float decay,
                 const void* weights, void* gradient, CUstream_st* stream) {
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    auto* g = static_cast<T*>(gradient);
    launch_elementwise<T>(Decay{decay}, {{static_cast<const T*>(weights), g}, {g}}, count, tiling,
                          stream);
  });
}

void sgd(DataType type, const Tiling& tiling, std::int64_t count, float rate, const void* gradient,
         void* weights, CUstream_st* stream) {
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    auto* w = static_cast<T*>(weights);
    launch_elementwise<T>(Descent{rate}, {{w, static_cast<const T*>(gradient)}, {w}}, count, tiling,
                          stream);
  });
}

void momentum(DataType type, const Tiling& tiling, std::int64_t count, float rate, float mu,
              const void* gradient, void* weights, void* velocity, CUstream_st* stream) {
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    auto *w = static_cast<T*>(weights), *v = static_cast<T*>(velocity);
    launch_elementwise<T>(Momentum{rate, mu}, {{w, v, static_cast<const T*>(gradient)}, {w, v}},
                          count, tiling, stream);
  });
}

void l2_forward(DataType type, std::int64_t blocks, std::int64_t count, const void* weights,
                float* dst, float* partial, CUstream_st* stream) {
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    const auto* w = static_cast<const T*>(weights);
    launch(partial_sums_kernel<T, Square>, dim3(static_cast<unsigned>(blocks)), dim3(kThreads), 0,
           stream, w, count, is_aligned(w), partial);
    launch(total_kernel<float>, dim3(1), dim3(kThreads), 0, stream,
           static_cast<const float*>(partial), blocks, 0.5f, dst);
  });
}

}  // namespace pydlbench::cuda::pointwise
