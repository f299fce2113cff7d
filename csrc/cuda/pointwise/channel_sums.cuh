// Sums per channel: of a gradient for a bias, and the pairs that batch normalisation needs.
//
// A channel's elements are divided among `splits` blocks. With one split, the block finishes the
// channel itself; with more, each writes its partial sum to partial[sum][channel][split], and a
// second kernel adds them in order.
//
// Terms defines the sums: kInputs tensors, kSums sums,
//   float reference(channel)                        called once per channel,
//   static void add(reference, in[kInputs], sums[kSums])  called once per element.
// Finish is called once per channel: finish(channel, sums).
#pragma once

#include <type_traits>

#include "cuda/pointwise/launchers.hpp"
#include "cuda/pointwise/reduce.cuh"
#include "cuda/pointwise/vector.cuh"

namespace pydlbench::cuda::pointwise {

template <typename T, int kInputs>
struct Inputs {
  const T* in[kInputs];
};

// A vector whose lanes begin .. end - 1 belong to a channel; none if end <= begin.
struct PlaneVector {
  std::int64_t first;
  int begin, end;
};

// A channel's planes in NCHW as vectors that are aligned to sixteen bytes in the whole tensor.
// Lanes outside of the plane are masked, so that any height x width is read in vectors.
struct Planes {
  std::int64_t batch, channels, inner, elements;
  std::int64_t slots;  // vectors per plane, the maximum over all planes
  Divider by_slots;

  Planes() = default;
  Planes(std::int64_t batch_, std::int64_t channels_, std::int64_t inner_, int lanes)
      : batch(batch_),
        channels(channels_),
        inner(inner_),
        elements(batch_ * channels_ * inner_),
        slots(inner_ % lanes == 0 ? inner_ / lanes : (inner_ + 2 * lanes - 2) / lanes),
        by_slots(slots, batch_ * slots) {}

  __host__ __device__ __forceinline__ std::int64_t vectors() const { return batch * slots; }

  // An empty vector has the address of its plane's first one.
  template <int lanes>
  __device__ __forceinline__ PlaneVector vector(std::int64_t channel, std::int64_t index) const {
    const std::int64_t image = by_slots.quotient(index);
    const std::int64_t plane = (image * channels + channel) * inner;
    const std::int64_t floor = plane / lanes * lanes;
    const std::int64_t first = floor + (index - image * slots) * lanes;
    const std::int64_t rest = plane + inner - first;
    if (rest <= 0) return {floor, 0, 0};
    return {first, static_cast<int>(plane > first ? plane - first : 0),
            static_cast<int>(rest < lanes ? rest : lanes)};
  }

  // Whether no vector of the channel extends beyond the tensor's end.
  template <int lanes>
  __device__ __forceinline__ bool inside(std::int64_t channel) const {
    return elements % lanes == 0 || (channels - 1 - channel) * inner >= lanes;
  }
};

// Calls body(in, at) for a block's share of a channel: in[input][lane], with valid lanes at.begin
// .. at.end - 1. Several vectors of each input are read before the first is used.
template <typename T, int kInputs, typename Body>
__device__ __forceinline__ void for_plane_vectors(const Inputs<T, kInputs>& inputs,
                                                  const Planes& planes, std::int64_t channel,
                                                  std::int64_t from, std::int64_t to, bool aligned,
                                                  Body&& body) {
  constexpr int lanes = kLanes<T>, unroll = kInputs > 1 ? 2 : 4;
  const bool whole = aligned && planes.inside<lanes>(channel);
  for (std::int64_t start = from + threadIdx.x; start < to; start += unroll * kThreads) {
    Bits16 bits[unroll][kInputs];
    PlaneVector at[unroll];
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      const std::int64_t index = start + u * kThreads;
      at[u] = planes.vector<lanes>(channel, index < to ? index : from);
      if (index >= to) at[u].end = 0;
    }
    if (whole) {
#pragma unroll
      for (int u = 0; u < unroll; ++u) {
#pragma unroll
        for (int i = 0; i < kInputs; ++i) bits[u][i] = load_whole(inputs.in[i], at[u].first);
      }
    } else {
#pragma unroll
      for (int u = 0; u < unroll; ++u) {
#pragma unroll
        for (int i = 0; i < kInputs; ++i) {
          bits[u][i] = load_bits(inputs.in[i], at[u].first, planes.elements, aligned);
        }
      }
    }
#pragma unroll
    for (int u = 0; u < unroll; ++u) {
      if (at[u].end <= at[u].begin) continue;
      float in[kInputs][lanes];
#pragma unroll
      for (int i = 0; i < kInputs; ++i) unpack<T>(bits[u][i], in[i]);
      body(in, at[u]);
    }
  }
}

// Sums this block's share of a channel; every thread gets the sums.
template <typename T, typename Terms>
__device__ __forceinline__ void sum_planes(const Inputs<T, Terms::kInputs>& inputs,
                                           const Planes& planes, std::int64_t channel,
                                           std::int64_t from, std::int64_t to, bool aligned,
                                           float reference, float (&sums)[Terms::kSums],
                                           float (&scratch)[Terms::kSums][32]) {
  constexpr int lanes = kLanes<T>, kInputs = Terms::kInputs;
#pragma unroll
  for (int k = 0; k < Terms::kSums; ++k) sums[k] = 0.0f;
  for_plane_vectors(inputs, planes, channel, from, to, aligned,
                    [&](const float (&in)[kInputs][lanes], const PlaneVector& at) {
                      // Sum within a vector first, for shorter chains of roundings.
                      float own[Terms::kSums] = {};
#pragma unroll
                      for (int lane = 0; lane < lanes; ++lane) {
                        float values[kInputs];
#pragma unroll
                        for (int i = 0; i < kInputs; ++i) values[i] = in[i][lane];
                        if (lane >= at.begin && lane < at.end) {
                          Terms::add(reference, values, own);
                        }
                      }
#pragma unroll
                      for (int k = 0; k < Terms::kSums; ++k) sums[k] += own[k];
                    });
  block_sum(sums, scratch);
}

template <typename T, typename Terms, typename Finish>
__global__ void __launch_bounds__(kThreads, kMinBlocks)
    plane_sums_kernel(Inputs<T, Terms::kInputs> inputs, Planes planes, bool aligned, Terms terms,
                      Finish finish, float* partial) {
  __shared__ float scratch[Terms::kSums][32];
  const std::int64_t channel = blockIdx.x, splits = gridDim.y, split = blockIdx.y;
  const std::int64_t share = (planes.vectors() + splits - 1) / splits;
  const std::int64_t from = split * share;
  const std::int64_t to = from + share < planes.vectors() ? from + share : planes.vectors();
  float sums[Terms::kSums];
  sum_planes<T, Terms>(inputs, planes, channel, from, to, aligned, terms.reference(channel), sums,
                       scratch);
  if (threadIdx.x != 0) return;
  if (splits == 1) {
    finish(channel, sums);
    return;
  }
#pragma unroll
  for (int k = 0; k < Terms::kSums; ++k) {
    partial[(k * planes.channels + channel) * splits + split] = sums[k];
  }
}

// Rows of channels (NHWC): `across` threads along a row with kWidth channels each; the other
// threads of the block process other rows.
template <typename T, int kWidth, typename Terms, typename Finish>
__global__ void __launch_bounds__(kThreads, kMinBlocks)
    row_sums_kernel(Inputs<T, Terms::kInputs> inputs, std::int64_t rows, std::int64_t channels,
                    int across, Terms terms, Finish finish, float* partial) {
  static_assert(kWidth == 1 || kWidth == kLanes<T>);
  constexpr int unroll = Terms::kInputs > 1 ? 2 : 4;
  __shared__ float shared[Terms::kSums][kWidth][kThreads];
  const int down = kThreads / across;
  const int column = static_cast<int>(threadIdx.x) % across;
  const int line = static_cast<int>(threadIdx.x) / across;
  const std::int64_t channel = (std::int64_t{blockIdx.x} * across + column) * kWidth;
  const std::int64_t splits = gridDim.y, split = blockIdx.y;
  const std::int64_t share = (rows + splits - 1) / splits;
  const std::int64_t from = split * share, to = from + share < rows ? from + share : rows;
  float sums[Terms::kSums][kWidth], reference[kWidth];
#pragma unroll
  for (int w = 0; w < kWidth; ++w) {
    reference[w] = channel < channels ? terms.reference(channel + w) : 0.0f;
#pragma unroll
    for (int k = 0; k < Terms::kSums; ++k) sums[k][w] = 0.0f;
  }
  // Adds kRows rows at intervals of `down`, all loaded before the first is used.
  const auto add_rows = [&](auto rows_at_once, std::int64_t row,
                            float (&to_sums)[Terms::kSums][kWidth]) {
    constexpr int kRows = decltype(rows_at_once)::value;
    std::conditional_t<kWidth == 1, T, Bits16> stored[kRows][Terms::kInputs];
#pragma unroll
    for (int u = 0; u < kRows; ++u) {
      const std::int64_t first = (row + u * down) * channels + channel;
#pragma unroll
      for (int i = 0; i < Terms::kInputs; ++i) {
        if constexpr (kWidth == 1) {
          stored[u][i] = inputs.in[i][first];
        } else {
          stored[u][i] = load_whole(inputs.in[i], first);
        }
      }
    }
#pragma unroll
    for (int u = 0; u < kRows; ++u) {
      float in[Terms::kInputs][kWidth];
#pragma unroll
      for (int i = 0; i < Terms::kInputs; ++i) {
        if constexpr (kWidth == 1) {
          in[i][0] = to_float(stored[u][i]);
        } else {
          unpack<T>(stored[u][i], in[i]);
        }
      }
#pragma unroll
      for (int w = 0; w < kWidth; ++w) {
        float values[Terms::kInputs], own[Terms::kSums];
#pragma unroll
        for (int i = 0; i < Terms::kInputs; ++i) values[i] = in[i][w];
#pragma unroll
        for (int k = 0; k < Terms::kSums; ++k) own[k] = to_sums[k][w];
        Terms::add(reference[w], values, own);
#pragma unroll
        for (int k = 0; k < Terms::kSums; ++k) to_sums[k][w] = own[k];
      }
    }
  };
  if (channel < channels) {
    // Sum runs of rows separately: the roundings of one long chain would accumulate.
    constexpr int run = 32;
    const std::int64_t last = to - (unroll - 1) * down;
    std::int64_t row = from + line;
    while (row < last) {
      float own[Terms::kSums][kWidth] = {};
      for (int n = 0; n < run && row < last; ++n, row += unroll * down) {
        add_rows(std::integral_constant<int, unroll>{}, row, own);
      }
#pragma unroll
      for (int k = 0; k < Terms::kSums; ++k) {
#pragma unroll
        for (int w = 0; w < kWidth; ++w) sums[k][w] += own[k][w];
      }
    }
    for (; row < to; row += down) add_rows(std::integral_constant<int, 1>{}, row, sums);
  }
#pragma unroll
  for (int k = 0; k < Terms::kSums; ++k) {
#pragma unroll
    for (int w = 0; w < kWidth; ++w) shared[k][w][threadIdx.x] = sums[k][w];
  }
  // Reduce by halves; `across` and so `down` are powers of two.
  for (int lines = down / 2; lines > 0; lines /= 2) {
    __syncthreads();
    if (line < lines) {
#pragma unroll
      for (int k = 0; k < Terms::kSums; ++k) {
#pragma unroll
        for (int w = 0; w < kWidth; ++w) {
          shared[k][w][threadIdx.x] += shared[k][w][threadIdx.x + lines * across];
        }
      }
    }
  }
  if (line != 0 || channel >= channels) return;
#pragma unroll
  for (int w = 0; w < kWidth; ++w) {
    float total[Terms::kSums];
#pragma unroll
    for (int k = 0; k < Terms::kSums; ++k) {
      total[k] = shared[k][w][threadIdx.x];
      if (splits > 1) partial[(k * channels + channel + w) * splits + split] = total[k];
    }
    if (splits == 1) finish(channel + w, total);
  }
}

// Adds the partial sums, with a warp per channel.
template <int kSums, typename Finish>
__global__ void __launch_bounds__(kThreads, kMinBlocks)
    finish_sums_kernel(const float* __restrict__ partial, std::int64_t channels, int splits,
                       Finish finish) {
  const std::int64_t channel = std::int64_t{blockIdx.x} * (kThreads / 32) + threadIdx.x / 32;
  if (channel >= channels) return;
  float sums[kSums];
#pragma unroll
  for (int k = 0; k < kSums; ++k) {
    sums[k] = 0.0f;
    for (int s = static_cast<int>(threadIdx.x) % 32; s < splits; s += 32) {
      sums[k] += partial[(k * channels + channel) * splits + s];
    }
    sums[k] = warp_sum(sums[k]);
  }
  if (threadIdx.x % 32 == 0) finish(channel, sums);
}

// Threads along a row of `columns` vectors (or single channels): a power of two, at most a warp.
inline int threads_across(std::int64_t columns) {
  int across = 1;
  while (across < 32 && across < columns) across *= 2;
  return across;
}

template <typename T, typename Terms, typename Finish>
void launch_channel_sums(const Inputs<T, Terms::kInputs>& inputs, const Image& image,
                         std::int64_t splits, const Terms& terms, const Finish& finish,
                         float* partial, CUstream_st* stream) {
  bool aligned = true;
  for (const T* pointer : inputs.in) aligned = aligned && is_aligned(pointer);
  const auto channels = image.channels;
  const auto parts = static_cast<unsigned>(splits);
  if (!image.channels_last) {
    const Planes planes(image.batch, channels, image.pixels(), kLanes<T>);
    launch(plane_sums_kernel<T, Terms, Finish>, dim3(static_cast<unsigned>(channels), parts),
           dim3(kThreads), 0, stream, inputs, planes, aligned, terms, finish, partial);
  } else {
    const auto rows = image.batch * image.pixels();
    const bool wide = aligned && channels % kLanes<T> == 0;
    const auto columns = wide ? channels / kLanes<T> : channels;
    const int across = threads_across(columns);
    const dim3 grid(static_cast<unsigned>((columns + across - 1) / across), parts);
    if (wide) {
      launch(row_sums_kernel<T, kLanes<T>, Terms, Finish>, grid, dim3(kThreads), 0, stream, inputs,
             rows, channels, across, terms, finish, partial);
    } else {
      launch(row_sums_kernel<T, 1, Terms, Finish>, grid, dim3(kThreads), 0, stream, inputs, rows,
             channels, across, terms, finish, partial);
    }
  }
  if (splits == 1) return;
  constexpr unsigned per_block = kThreads / 32;
  launch(finish_sums_kernel<Terms::kSums, Finish>,
         dim3((static_cast<unsigned>(channels) + per_block - 1) / per_block), dim3(kThreads), 0,
         stream, static_cast<const float*>(partial), channels, static_cast<int>(splits), finish);
}

}  // namespace pydlbench::cuda::pointwise
