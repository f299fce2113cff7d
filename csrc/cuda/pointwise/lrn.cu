// Local response normalisation across channels, Krizhevsky et al. 2012:
//   d[c] = k + alpha / local_size x sum of x[j]^2 over the window around c,   y = x d^-beta,
// and its gradient
//   dx[c] = dy[c] d[c]^-beta - 2 alpha beta / local_size x[c] sum of t[j] over the window,
//   t[j] = dy[j] x[j] d[j]^(-beta - 1).
#include "cuda/pointwise/lrn.cuh"

namespace pydlbench::cuda::pointwise {

namespace {

template <typename T>
struct Tensors {
  const T *src, *ddst;
  T* to;
};

template <typename T, int kSize>
void launch_registers(bool forward, std::int64_t chunk, const Image& image, const Window& window,
                      const Tensors<T>& t, CUstream_st* stream) {
  const std::int64_t places = image.batch * image.pixels();
  const std::int64_t chunks = (image.channels + chunk - 1) / chunk;
  const dim3 grid(static_cast<unsigned>((places + kThreads - 1) / kThreads),
                  static_cast<unsigned>(chunks));
  const Divider by_pixels(image.pixels(), places);
  if (forward) {
    launch(lrn_forward_registers_kernel<T, kSize>, grid, dim3(kThreads), 0, stream, t.src, t.to,
           places, image.channels, chunk, by_pixels, window);
  } else {
    launch(lrn_backward_registers_kernel<T, kSize>, grid, dim3(kThreads), 0, stream, t.src, t.ddst,
           t.to, places, image.channels, chunk, by_pixels, window);
  }
}

template <typename T>
void launch_lrn(bool forward, LrnKernel kernel, std::int64_t chunk, const Image& image,
                const LrnParameters& p, const Tensors<T>& t, CUstream_st* stream) {
  const Window window{p.local_size / 2, p.alpha / static_cast<float>(p.local_size), p.beta, p.k};
  if (kernel == LrnKernel::registers) {
    PYDLBENCH_CHECK(!image.channels_last && lrn_in_registers(p.local_size),
                    "windows are kept in registers for NCHW and certain sizes");
    switch (p.local_size) {
      case 3:
        return launch_registers<T, 3>(forward, chunk, image, window, t, stream);
      case 5:
        return launch_registers<T, 5>(forward, chunk, image, window, t, stream);
      case 9:
        return launch_registers<T, 9>(forward, chunk, image, window, t, stream);
      default:
        return launch_registers<T, 11>(forward, chunk, image, window, t, stream);
    }
  }
  if (kernel == LrnKernel::shared) {
    PYDLBENCH_CHECK(image.channels_last && image.channels <= kLrnSharedChannels,
                    "pixels are kept in shared memory for NHWC and few channels");
    const std::int64_t places = image.batch * image.pixels();
    const std::int64_t per_block = std::max<std::int64_t>(1, kLrnTile / image.channels);
    const dim3 grid(static_cast<unsigned>((places + per_block - 1) / per_block));
    const Divider by_channels(image.channels, kLrnSharedChannels);
    if (forward) {
      launch(lrn_forward_shared_kernel<T>, grid, dim3(kThreads), 0, stream, t.src, t.to,
             image.elements(), per_block, by_channels, window);
    } else {
      launch(lrn_backward_shared_kernel<T>, grid, dim3(kThreads), 0, stream, t.src, t.ddst, t.to,
             image.elements(), per_block, by_channels, window);
    }
    return;
  }
  const auto blocks = (image.elements() + kThreads - 1) / kThreads;
  const std::int64_t stride = image.channels_last ? 1 : image.pixels();
  const auto map = channel_map(image);
  launch(lrn_elements_kernel<T>, dim3(static_cast<unsigned>(std::min(blocks, kMostBlocks))),
         dim3(kThreads), 0, stream, t.src, forward ? nullptr : t.ddst, t.to, image.elements(),
         stride, map, window);
}

}  // namespace

void lrn_forward(DataType type, LrnKernel kernel, std::int64_t chunk, const Image& image,
                 const LrnParameters& parameters, const void* src, void* dst, CUstream_st* stream) {
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    launch_lrn<T>(true, kernel, chunk, image, parameters,
                  {static_cast<const T*>(src), nullptr, static_cast<T*>(dst)}, stream);
  });
}

void lrn_backward(DataType type, LrnKernel kernel, std::int64_t chunk, const Image& image,
                  const LrnParameters& parameters, const void* src, const void* ddst, void* dsrc,
                  CUstream_st* stream) {
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    launch_lrn<T>(false, kernel, chunk, image, parameters,
                  {static_cast<const T*>(src), static_cast<const T*>(ddst), static_cast<T*>(dsrc)},
                  stream);
  });
}

}  // namespace pydlbench::cuda::pointwise
