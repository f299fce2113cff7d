// A bias per channel, and the sum of its gradient.
#include "cuda/pointwise/channel_sums.cuh"

namespace pydlbench::cuda::pointwise {

namespace {

template <typename T>
struct AddBias {
  static constexpr int kInputs = 1, kOutputs = 1;
  ChannelMap map;
  const T* bias;
  template <int n>
  __device__ __forceinline__ void operator()(std::int64_t first, const float (&in)[1][n],
                                             float (&out)[1][n]) const {
    float values[n];
    map.gather(bias, map.place(first), values);
#pragma unroll
    for (int i = 0; i < n; ++i) out[0][i] = in[0][i] + values[i];
  }
};

struct Sum {
  static constexpr int kInputs = 1, kSums = 1;
  __device__ __forceinline__ float reference(std::int64_t) const { return 0.0f; }
  static __device__ __forceinline__ void add(float, const float (&in)[1], float (&sums)[1]) {
    sums[0] += in[0];
  }
};

template <typename T>
struct StoreSum {
  T* to;
  __device__ __forceinline__ void operator()(std::int64_t channel, const float (&sums)[1]) const {
    to[channel] = from_float<T>(sums[0]);
  }
};

}  // namespace

void bias_forward(DataType type, const Tiling& tiling, const Image& image, const void* src,
                  const void* bias, void* dst, CUstream_st* stream) {
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    const AddBias<T> op{channel_map(image), static_cast<const T*>(bias)};
    launch_elementwise<T>(op, {{static_cast<const T*>(src)}, {static_cast<T*>(dst)}},
                          image.elements(), tiling, stream);
  });
}

void bias_backward(DataType type, std::int64_t splits, const Image& image, const void* ddst,
                   void* dbias, float* partial, CUstream_st* stream) {
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    launch_channel_sums<T>(Inputs<T, 1>{{static_cast<const T*>(ddst)}}, image, splits, Sum{},
                           StoreSum<T>{static_cast<T*>(dbias)}, partial, stream);
  });
}

}  // namespace pydlbench::cuda::pointwise
