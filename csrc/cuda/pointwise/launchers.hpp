// Launchers of the kernels, for plans that the host compiler compiles.
//
// Images are dense, in the order of Image. Tensors are in `type` (float32, float16 or bfloat16)
// unless declared otherwise; arithmetic is in float32.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/mode.hpp"

struct CUstream_st;

namespace pydlbench::cuda::pointwise {

struct Image {
  std::int64_t batch, channels, height, width;
  bool channels_last;

  std::int64_t pixels() const { return height * width; }
  std::int64_t elements() const { return batch * channels * pixels(); }
};

// Division of work in elementwise kernels: vectors per thread, and the largest number of blocks (a
// block processes every max_blocks-th tile).
struct Tiling {
  bool unrolled;
  std::int64_t max_blocks;
};
// Vectors of each input that a thread of an unrolled kernel reads before it computes.
constexpr int unrolled_vectors(int inputs) { return inputs > 1 ? 2 : 4; }
inline constexpr int kThreads = 256;
// Blocks per multiprocessor for which registers must suffice. Without this limit on occupancy, the
// compiler saves registers by loading late, one vector at a time.
inline constexpr int kMinBlocks = 2;
inline constexpr std::int64_t kMaxBlocks = 0x7fffffff;

// elementwise.cu
void relu_forward(DataType type, const Tiling& tiling, std::int64_t count, const void* src,
                  void* dst, CUstream_st* stream);
void relu_backward(DataType type, const Tiling& tiling, std::int64_t count, const void* src,
                   const void* ddst, void* dsrc, CUstream_st* stream);
void add_forward(DataType type, const Tiling& tiling, std::int64_t count, const void* a,
                 const void* b, void* dst, CUstream_st* stream);

// activations.cu
enum class Activation {
  clip,
  hardsigmoid,
  hardswish,
  sigmoid,
  tanh,
  softplus,
  elu,
  silu,
  mish,
  gelu,
  gelu_tanh
};
struct Bounds {
  float low, high;  // of clip
};
void activation_forward(DataType type, const Tiling& tiling, std::int64_t count, Activation which,
                        Bounds bounds, const void* src, void* dst, CUstream_st* stream);
void activation_backward(DataType type, const Tiling& tiling, std::int64_t count, Activation which,
                         Bounds bounds, const void* src, const void* ddst, void* dsrc,
                         CUstream_st* stream);

// Optimizers: gradient += decay x weights; weights -= rate x gradient; with momentum, velocity = mu
// x velocity + gradient; weights -= rate x velocity.
void l2_backward(DataType type, const Tiling& tiling, std::int64_t count, float decay,
                 const void* weights, void* gradient, CUstream_st* stream);
void sgd(DataType type, const Tiling& tiling, std::int64_t count, float rate, const void* gradient,
         void* weights, CUstream_st* stream);
void momentum(DataType type, const Tiling& tiling, std::int64_t count, float rate, float mu,
              const void* gradient, void* weights, void* velocity, CUstream_st* stream);
// Half the sum of squares; partial has `blocks` elements.
void l2_forward(DataType type, std::int64_t blocks, std::int64_t count, const void* weights,
                float* dst, float* partial, CUstream_st* stream);

// bias.cu; partial has channels x splits elements if splits > 1.
void bias_forward(DataType type, const Tiling& tiling, const Image& image, const void* src,
                  const void* bias, void* dst, CUstream_st* stream);
void bias_backward(DataType type, std::int64_t splits, const Image& image, const void* ddst,
                   void* dbias, float* partial, CUstream_st* stream);

// batchnorm.cu
struct BatchnormParameters {
  const float *weights, *bias, *mean, *variance;
  float epsilon;
};
// Batch statistics to write, and running statistics to update by `momentum`.
struct BatchnormStatistics {
  float *mean, *variance, *running_mean, *running_variance;
  float momentum;
};
void batchnorm_apply(DataType type, const Tiling& tiling, const Image& image, const void* src,
                     const BatchnormParameters& parameters, void* dst, CUstream_st* stream);
// partial has 2 x channels x splits elements if splits > 1.
void batchnorm_statistics(DataType type, std::int64_t splits, const Image& image, const void* src,
                          const BatchnormStatistics& statistics, float* partial,
                          CUstream_st* stream);
void batchnorm_gradients(DataType type, std::int64_t splits, const Image& image, const void* src,
                         const void* ddst, const BatchnormParameters& parameters, float* dweights,
                         float* dbias, float* partial, CUstream_st* stream);
void batchnorm_backward_apply(DataType type, const Tiling& tiling, const Image& image,
                              const void* src, const void* ddst,
                              const BatchnormParameters& parameters, const float* dweights,
                              const float* dbias, void* dsrc, CUstream_st* stream);
// lrn.cu: windows of any size over up to kLrnChannels channels, the limit of shared memory.
struct LrnParameters {
  int local_size;
  float alpha, beta, k;
};
inline constexpr std::int64_t kLrnChannels = 4096;
void lrn_forward(DataType type, const Image& image, const LrnParameters& parameters,
                 const void* src, void* dst, CUstream_st* stream);
void lrn_backward(DataType type, const Image& image, const LrnParameters& parameters,
                  const void* src, const void* ddst, void* dsrc, CUstream_st* stream);

// softmax.cu: rows of logits, one class index per row; row_loss has `rows` elements.
void softmax_forward(DataType type, bool block_per_row, std::int64_t rows, std::int64_t classes,
                     const void* src, const std::int32_t* labels, void* dst, float* loss,
                     float* row_loss, CUstream_st* stream);
void softmax_backward(DataType type, const Tiling& tiling, std::int64_t rows, std::int64_t classes,
                      const void* probabilities, const std::int32_t* labels, void* dsrc,
                      CUstream_st* stream);

// Probabilities or their logarithms, and the gradient, which reads that result.
void row_softmax_forward(DataType type, bool block_per_row, bool logarithm, std::int64_t rows,
                         std::int64_t width, const void* src, void* dst, CUstream_st* stream);
void row_softmax_backward(DataType type, bool block_per_row, bool logarithm, std::int64_t rows,
                          std::int64_t width, const void* result, const void* ddst, void* dsrc,
                          CUstream_st* stream);

// dropout.cu: both passes are the same function.
void dropout(DataType type, const Tiling& tiling, const Image& image, double keep, const void* src,
             void* dst, CUstream_st* stream);

// concat.cu: each of the `rows` rows of the concatenated tensor consists of one row of each piece.
struct Piece {
  const void* data;
  std::int64_t row_bytes;
};
enum class Concat { join, split };
void concat(Concat direction, const Tiling& tiling, std::int64_t rows,
            const std::vector<Piece>& pieces, const void* joined, CUstream_st* stream);

}  // namespace pydlbench::cuda::pointwise
