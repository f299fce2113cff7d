// ReLU and the sum of two tensors.
#include "cuda/pointwise/elementwise.cuh"

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

}  // namespace pydlbench::cuda::pointwise
