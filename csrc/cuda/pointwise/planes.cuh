// A channel's elements in NCHW: one plane per image, read in vectors wherever the plane starts and
// ends.
#pragma once

#include "cuda/pointwise/launchers.hpp"
#include "cuda/pointwise/vector.cuh"

namespace pydlbench::cuda::pointwise {

template <typename T, int kInputs>
struct Inputs {
  const T* in[kInputs];
};

// A vector of which the lanes begin .. end - 1 belong to a channel; none where end <= begin.
struct PlaneVector {
  std::int64_t first;
  int begin, end;
};

// A channel's planes in NCHW, cut into vectors on the sixteen-byte grid of the whole tensor: a
// plane that starts or ends inside a vector has those lanes masked, so any height x width is read
// in vectors.
struct Planes {
  std::int64_t batch, channels, inner, elements;
  std::int64_t slots;  // vectors per plane, the most any plane needs
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

  // An empty one points at its plane's first vector.
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

  // Whether no vector of the channel reaches beyond the tensor's end.
  template <int lanes>
  __device__ __forceinline__ bool inside(std::int64_t channel) const {
    return elements % lanes == 0 || (channels - 1 - channel) * inner >= lanes;
  }
};

// Calls body(in, at) for a block's share of a channel: in[input][lane], of which at.begin .. at.end
// - 1 count. Several vectors of each input are read before the first is used.
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

}  // namespace pydlbench::cuda::pointwise
