// Batch normalisation: statistics over batch and pixels of each channel, what follows from them for
// every element, and both in one kernel.
#include "cuda/pointwise/channel_sums.cuh"

namespace pydlbench::cuda::pointwise {

__device__ __forceinline__ float inverse_deviation(float variance, float epsilon) {
  return rsqrtf(variance + epsilon);
}

// dst = (src - mean) x scale + bias, for one channel.
struct NormaliseOne {
  float mean, scale, bias;
  __device__ __forceinline__ NormaliseOne(const BatchnormParameters& p, float mean_, float variance,
                                          float weights, float bias_)
      : mean(mean_), scale(weights * inverse_deviation(variance, p.epsilon)), bias(bias_) {}
  __device__ __forceinline__ float operator()(float x) const { return (x - mean) * scale + bias; }
};

struct Normalise {
  static constexpr int kInputs = 1, kOutputs = 1;
  ChannelMap map;
  BatchnormParameters p;
  template <int n>
  __device__ __forceinline__ void operator()(std::int64_t first, const float (&in)[1][n],
                                             float (&out)[1][n]) const {
    if (map.inner > 1) {
      map.each(
          first, [&](int channel) { return at(channel); },
          [&](const NormaliseOne& one, int i) { return one(in[0][i]); }, out[0]);
      return;
    }
    const auto place = map.place(first);
    float mean[n], variance[n], weights[n], bias[n];
    map.gather(p.mean, place, mean);
    map.gather(p.variance, place, variance);
    map.gather(p.weights, place, weights);
    map.gather(p.bias, place, bias);
#pragma unroll
    for (int i = 0; i < n; ++i) {
      out[0][i] = NormaliseOne(p, mean[i], variance[i], weights[i], bias[i])(in[0][i]);
    }
  }
  __device__ __forceinline__ NormaliseOne at(std::int64_t c) const {
    return NormaliseOne(p, p.mean[c], p.variance[c], p.weights[c], p.bias[c]);
  }
};

// Sums of x - r and (x - r)^2, with r the channel's first element: a large mean does not cancel out
// the digits of the variance, and partial sums just add up.
template <typename T>
struct Moments {
  static constexpr int kInputs = 1, kSums = 2;
  const T* src;
  std::int64_t inner;
  __device__ __forceinline__ float reference(std::int64_t channel) const {
    return to_float(src[channel * inner]);
  }
  static __device__ __forceinline__ void add(float reference, const float (&in)[1],
                                             float (&sums)[2]) {
    const float d = in[0] - reference;
    sums[0] += d;
    sums[1] += d * d;
  }
};

template <typename T>
struct StoreMoments {
  Moments<T> moments;
  BatchnormStatistics to;
  float count;
  __device__ __forceinline__ void operator()(std::int64_t channel, const float (&sums)[2]) const {
    const float shift = sums[0] / count;
    const float mean = moments.reference(channel) + shift;
    const float variance = fmaxf(sums[1] / count - shift * shift, 0.0f);
    const float unbiased = variance * (count / fmaxf(count - 1.0f, 1.0f));
    to.mean[channel] = mean;
    to.variance[channel] = variance;
    to.running_mean[channel] += to.momentum * (mean - to.running_mean[channel]);
    to.running_variance[channel] += to.momentum * (unbiased - to.running_variance[channel]);
  }
};

// Sums of dy and dy (x - mean).
struct Gradients {
  static constexpr int kInputs = 2, kSums = 2;
  const float* mean;
  __device__ __forceinline__ float reference(std::int64_t channel) const { return mean[channel]; }
  static __device__ __forceinline__ void add(float reference, const float (&in)[2],
                                             float (&sums)[2]) {
    sums[0] += in[1];
    sums[1] += in[1] * (in[0] - reference);
  }
};

struct StoreGradients {
  BatchnormParameters p;
  float *dweights, *dbias;
  __device__ __forceinline__ void operator()(std::int64_t channel, const float (&sums)[2]) const {
    dbias[channel] = sums[0];
    dweights[channel] = sums[1] * inverse_deviation(p.variance[channel], p.epsilon);
  }
};

// dx = weights i (dy - dbias / count - (x - mean) i dweights / count), for one channel.
struct InputGradientOne {
  float mean, factor, slope, offset;
  __device__ __forceinline__ InputGradientOne(const BatchnormParameters& p, float mean_,
                                              float variance, float weights, float dweights,
                                              float dbias, float inverse_count)
      : mean(mean_) {
    const float inverse = inverse_deviation(variance, p.epsilon);
    factor = weights * inverse;
    slope = inverse * dweights * inverse_count;
    offset = dbias * inverse_count;
  }
  __device__ __forceinline__ float operator()(float x, float dy) const {
    return factor * (dy - offset - (x - mean) * slope);
  }
};

struct InputGradient {
  static constexpr int kInputs = 2, kOutputs = 1;
  ChannelMap map;
  BatchnormParameters p;
  const float *dweights, *dbias;
  float inverse_count;
  template <int n>
  __device__ __forceinline__ void operator()(std::int64_t first, const float (&in)[2][n],
                                             float (&out)[1][n]) const {
    if (map.inner > 1) {
      map.each(
          first, [&](int channel) { return at(channel); },
          [&](const InputGradientOne& one, int i) { return one(in[0][i], in[1][i]); }, out[0]);
      return;
    }
    const auto place = map.place(first);
    float mean[n], variance[n], weights[n], dw[n], db[n];
    map.gather(p.mean, place, mean);
    map.gather(p.variance, place, variance);
    map.gather(p.weights, place, weights);
    map.gather(dweights, place, dw);
    map.gather(dbias, place, db);
#pragma unroll
    for (int i = 0; i < n; ++i) {
      out[0][i] = InputGradientOne(p, mean[i], variance[i], weights[i], dw[i], db[i],
                                   inverse_count)(in[0][i], in[1][i]);
    }
  }
  __device__ __forceinline__ InputGradientOne at(std::int64_t c) const {
    return InputGradientOne(p, p.mean[c], p.variance[c], p.weights[c], dweights[c], dbias[c],
                            inverse_count);
  }
};

// A block per channel: its sums, what follows from them, and then the channel's elements once more,
// out of the caches where they fit. The channel's sums are read back by the block that wrote them.
template <typename T, typename Terms, typename Finish, typename Apply>
__global__ void __launch_bounds__(kThreads, kLeastBlocks)
    fused_kernel(Inputs<T, Terms::kInputs> inputs, Planes planes, bool aligned, Terms terms,
                 Finish finish, Apply apply, T* dst) {
  __shared__ float scratch[Terms::kSums][32];
  constexpr int lanes = kLanes<T>;
  const std::int64_t channel = blockIdx.x;
  float sums[Terms::kSums];
  sum_planes<T, Terms>(inputs, planes, channel, 0, planes.vectors(), aligned,
                       terms.reference(channel), sums, scratch);
  if (threadIdx.x == 0) finish(channel, sums);
  __syncthreads();
  const auto one = apply.at(channel);
  const auto write = [&](const float (&in)[Terms::kInputs][lanes], const PlaneVector& at) {
    float out[lanes];
#pragma unroll
    for (int i = 0; i < lanes; ++i) {
      if constexpr (Terms::kInputs == 1) {
        out[i] = one(in[0][i]);
      } else {
        out[i] = one(in[0][i], in[1][i]);
      }
    }
    if (at.begin == 0 && at.end == lanes) {
      store_lanes(dst, at.first, planes.elements, aligned, out);
      return;
    }
#pragma unroll
    for (int i = 0; i < lanes; ++i) {
      if (i >= at.begin && i < at.end) dst[at.first + i] = from_float<T>(out[i]);
    }
  };
  for_plane_vectors(inputs, planes, channel, 0, planes.vectors(), aligned, write);
}

namespace {

template <typename T, typename Terms, typename Finish, typename Apply>
void launch_fused(const Inputs<T, Terms::kInputs>& inputs, const Image& image, const Terms& terms,
                  const Finish& finish, const Apply& apply, T* dst, CUstream_st* stream) {
  bool aligned = is_aligned(dst);
  for (const T* pointer : inputs.in) aligned = aligned && is_aligned(pointer);
  const Planes planes(image.batch, image.channels, image.pixels(), kLanes<T>);
  launch(fused_kernel<T, Terms, Finish, Apply>, dim3(static_cast<unsigned>(image.channels)),
         dim3(kThreads), 0, stream, inputs, planes, aligned, terms, finish, apply, dst);
}

float elements_per_channel(const Image& image) {
  return static_cast<float>(image.batch * image.pixels());
}

template <typename T>
Moments<T> moments(const Image& image, const void* src) {
  return {static_cast<const T*>(src), image.channels_last ? 1 : image.pixels()};
}

BatchnormParameters with_statistics(const BatchnormParameters& parameters,
                                    const BatchnormStatistics& statistics) {
  return {parameters.weights, parameters.bias, statistics.mean, statistics.variance,
          parameters.epsilon};
}

}  // namespace

void batchnorm_apply(DataType type, const Tiling& tiling, const Image& image, const void* src,
                     const BatchnormParameters& parameters, void* dst, CUstream_st* stream) {
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    launch_elementwise<T>(Normalise{channel_map(image), parameters},
                          {{static_cast<const T*>(src)}, {static_cast<T*>(dst)}}, image.elements(),
                          tiling, stream);
  });
}

void batchnorm_statistics(DataType type, std::int64_t splits, const Image& image, const void* src,
                          const BatchnormStatistics& statistics, float* partial,
                          CUstream_st* stream) {
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    const auto terms = moments<T>(image, src);
    launch_channel_sums<T>(Inputs<T, 1>{{static_cast<const T*>(src)}}, image, splits, terms,
                           StoreMoments<T>{terms, statistics, elements_per_channel(image)}, partial,
                           stream);
  });
}

void batchnorm_forward_fused(DataType type, const Image& image, const void* src,
                             const BatchnormParameters& parameters,
                             const BatchnormStatistics& statistics, void* dst,
                             CUstream_st* stream) {
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    const auto terms = moments<T>(image, src);
    launch_fused<T>(Inputs<T, 1>{{static_cast<const T*>(src)}}, image, terms,
                    StoreMoments<T>{terms, statistics, elements_per_channel(image)},
                    Normalise{channel_map(image), with_statistics(parameters, statistics)},
                    static_cast<T*>(dst), stream);
  });
}

void batchnorm_gradients(DataType type, std::int64_t splits, const Image& image, const void* src,
                         const void* ddst, const BatchnormParameters& parameters, float* dweights,
                         float* dbias, float* partial, CUstream_st* stream) {
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    launch_channel_sums<T>(Inputs<T, 2>{{static_cast<const T*>(src), static_cast<const T*>(ddst)}},
                           image, splits, Gradients{parameters.mean},
                           StoreGradients{parameters, dweights, dbias}, partial, stream);
  });
}

void batchnorm_backward_apply(DataType type, const Tiling& tiling, const Image& image,
                              const void* src, const void* ddst,
                              const BatchnormParameters& parameters, const float* dweights,
                              const float* dbias, void* dsrc, CUstream_st* stream) {
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    const InputGradient op{channel_map(image), parameters, dweights, dbias,
                           1.0f / elements_per_channel(image)};
    launch_elementwise<T>(
        op, {{static_cast<const T*>(src), static_cast<const T*>(ddst)}, {static_cast<T*>(dsrc)}},
        image.elements(), tiling, stream);
  });
}

void batchnorm_backward_fused(DataType type, const Image& image, const void* src, const void* ddst,
                              const BatchnormParameters& parameters, float* dweights, float* dbias,
                              void* dsrc, CUstream_st* stream) {
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    launch_fused<T>(Inputs<T, 2>{{static_cast<const T*>(src), static_cast<const T*>(ddst)}}, image,
                    Gradients{parameters.mean}, StoreGradients{parameters, dweights, dbias},
                    InputGradient{channel_map(image), parameters, dweights, dbias,
                                  1.0f / elements_per_channel(image)},
                    static_cast<T*>(dsrc), stream);
  });
}

}  // namespace pydlbench::cuda::pointwise
