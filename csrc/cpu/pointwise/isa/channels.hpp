// Loops over channels: affine maps per channel, and sums per channel.
#pragma once

#include "cpu/pointwise/isa/vector.hpp"

namespace pydlbench::cpu::pointwise::PYDLBENCH_ISA {
namespace {

// Independent chains of additions, which hide the latency.
constexpr int kChains = 4;

template <typename T>
void affine(const void* src, void* dst, Index count, Affine one, bool streaming) {
  const auto* from = static_cast<const T*>(src);
  fill(static_cast<T*>(dst), count, streaming, [&](Index i, Index lanes) {
    return (load_lanes(from + i, lanes) - one.mean) * one.scale + one.bias;
  });
}

template <typename T>
void gradient(const void* x, const void* dy, void* dx, Index count, GradientTerms one,
              bool streaming) {
  const auto* source = static_cast<const T*>(x);
  const auto* incoming = static_cast<const T*>(dy);
  fill(static_cast<T*>(dx), count, streaming, [&](Index i, Index lanes) {
    const Floats centred = load_lanes(source + i, lanes) - one.mean;
    return (load_lanes(incoming + i, lanes) - one.offset - centred * one.slope) * one.factor;
  });
}

// Calls `body(start, length)` for each period; the last one may be shorter.
template <typename Body>
PYDLBENCH_INLINE void for_periods(Index count, Index period, Body&& body) {
  for (Index start = 0; start < count; start += period) {
    body(start, count - start < period ? count - start : period);
  }
}

template <typename T>
void affine_tile(const void* src, void* dst, Index count, const AffineTile& tile, bool streaming) {
  const auto* from = static_cast<const T*>(src);
  auto* to = static_cast<T*>(dst);
  for_periods(count, tile.period, [&](Index start, Index length) {
    fill(to + start, length, streaming, [&](Index i, Index lanes) {
      return (load_lanes(from + start + i, lanes) - load(tile.mean + i)) * load(tile.scale + i) +
             load(tile.bias + i);
    });
  });
}

template <typename T>
void gradient_tile(const void* x, const void* dy, void* dx, Index count, const GradientTile& tile,
                   bool streaming) {
  const auto* source = static_cast<const T*>(x);
  const auto* incoming = static_cast<const T*>(dy);
  auto* to = static_cast<T*>(dx);
  for_periods(count, tile.period, [&](Index start, Index length) {
    fill(to + start, length, streaming, [&](Index i, Index lanes) {
      const Floats centred = load_lanes(source + start + i, lanes) - load(tile.mean + i);
      return (load_lanes(incoming + start + i, lanes) - load(tile.offset + i) -
              centred * load(tile.slope + i)) *
             load(tile.factor + i);
    });
  });
}

// Zeroes the lanes beyond the end of a row.
PYDLBENCH_INLINE Floats first_lanes(Floats values, Index lanes) {
  Ints lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
  return lane < static_cast<std::int32_t>(lanes) ? values : broadcast(0.0f);
}

// Sums `term(i, lanes, partial)` in chains of vectors.
template <int kSums, typename Term>
PYDLBENCH_INLINE void sum_row(Index count, float* sums, Term&& term) {
  Floats chains[kChains][kSums] = {};
  Index i = 0;
  for (; i + kChains * kLanes <= count; i += kChains * kLanes) {
#pragma GCC unroll 4
    for (int chain = 0; chain < kChains; ++chain) {
      term(i + chain * kLanes, Index{kLanes}, chains[chain]);
    }
  }
  for (; i < count; i += kLanes) {
    term(i, count - i < kLanes ? count - i : Index{kLanes}, chains[0]);
  }
  for (int s = 0; s < kSums; ++s) {
    sums[s] = total((chains[0][s] + chains[1][s]) + (chains[2][s] + chains[3][s]));
  }
}

template <typename T>
float sum(const void* src, Index count) {
  const auto* from = static_cast<const T*>(src);
  float result = 0.0f;
  sum_row<1>(count, &result,
             [&](Index i, Index lanes, Floats* to) { to[0] += load_lanes(from + i, lanes); });
  return result;
}

template <typename T>
float sum_squares(const void* weights, Index count) {
  const auto* from = static_cast<const T*>(weights);
  float result = 0.0f;
  sum_row<1>(count, &result, [&](Index i, Index lanes, Floats* to) {
    const Floats w = load_lanes(from + i, lanes);
    to[0] += w * w;
  });
  return result;
}

template <typename T>
void moments(const void* x, Index count, float reference, float* sums) {
  const auto* from = static_cast<const T*>(x);
  sum_row<2>(count, sums, [&](Index i, Index lanes, Floats* to) {
    Floats d = load_lanes(from + i, lanes) - reference;
    if (lanes < kLanes) d = first_lanes(d, lanes);
    to[0] += d;
    to[1] += d * d;
  });
}

template <typename T>
void products(const void* x, const void* dy, Index count, float reference, float* sums) {
  const auto* source = static_cast<const T*>(x);
  const auto* incoming = static_cast<const T*>(dy);
  sum_row<2>(count, sums, [&](Index i, Index lanes, Floats* to) {
    const Floats g = load_lanes(incoming + i, lanes);
    to[0] += g;
    to[1] += g * (load_lanes(source + i, lanes) - reference);
  });
}

template <typename T>
void sum_tile(const void* src, Index count, Index period, float* sums) {
  const auto* from = static_cast<const T*>(src);
  for_periods(count, period, [&](Index start, Index length) {
    for_vectors(length, [&](Index i, Index lanes) {
      store(sums + i, load(sums + i) + load_lanes(from + start + i, lanes));
    });
  });
}

template <typename T>
void moments_tile(const void* x, Index count, Index period, const float* reference, float* sums) {
  const auto* from = static_cast<const T*>(x);
  for_periods(count, period, [&](Index start, Index length) {
    for_vectors(length, [&](Index i, Index lanes) {
      Floats d = load_lanes(from + start + i, lanes) - load(reference + i);
      if (lanes < kLanes) d = first_lanes(d, lanes);
      store(sums + i, load(sums + i) + d);
      store(sums + period + i, load(sums + period + i) + d * d);
    });
  });
}

template <typename T>
void products_tile(const void* x, const void* dy, Index count, Index period, const float* reference,
                   float* sums) {
  const auto* source = static_cast<const T*>(x);
  const auto* incoming = static_cast<const T*>(dy);
  for_periods(count, period, [&](Index start, Index length) {
    for_vectors(length, [&](Index i, Index lanes) {
      const Floats g = load_lanes(incoming + start + i, lanes);
      const Floats centred = load_lanes(source + start + i, lanes) - load(reference + i);
      store(sums + i, load(sums + i) + g);
      store(sums + period + i, load(sums + period + i) + g * centred);
    });
  });
}

}  // namespace
}  // namespace pydlbench::cpu::pointwise::PYDLBENCH_ISA
