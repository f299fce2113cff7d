// Batch normalisation: statistics over batch and pixels of each channel, and their gradients.
#include "cuda/pointwise/batchnorm.cuh"

namespace pydlbench::cuda::pointwise {

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
