// Batch normalisation: statistics over batch and pixels per channel, their gradients, and the
// elementwise results.
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

// Sums of x - r and (x - r)^2, with r the channel's first element, so that a large mean does not
// cancel the digits of the variance, and partial sums can be added.
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

namespace {

float elements_per_channel(const Image& image) {
  return static_cast<float>(image.batch * image.pixels());
}

template <typename T>
Moments<T> moments(const Image& image, const void* src) {
  return {static_cast<const T*>(src), image.channels_last ? 1 : image.pixels()};
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

}  // namespace pydlbench::cuda::pointwise
