// Loops along an axis: cumulative sums, extremes with their index, and the logarithm of a sum of
// exponentials. Columns are neighbours in memory; rows are `stride` elements apart.
#pragma once

#include "cpu/pointwise/isa/channels.hpp"
#include "cpu/pointwise/isa/functions.hpp"

namespace pydlbench::cpu::pointwise::PYDLBENCH_ISA {
namespace {

// Rows that are summed at the same time, to hide the latency of an addition.
constexpr Index kScannedRows = 8;

template <typename T>
PYDLBENCH_INLINE float scalar(const T* from) {
  if constexpr (sizeof(T) == 4) {
    return *from;
  } else {
    const std::uint32_t bits = static_cast<std::uint32_t>(from->bits) << 16;
    float value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
  }
}

template <typename T>
PYDLBENCH_INLINE void set(T* to, float value) {
  if constexpr (sizeof(T) == 4) {
    *to = value;
  } else {
    std::uint32_t bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    to->bits = static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
  }
}

template <typename T>
void cumsum(const void* src, void* dst, Index rows, Index count, bool from_end) {
  const auto* from = static_cast<const T*>(src);
  auto* to = static_cast<T*>(dst);
  const Index step = from_end ? -1 : 1, start = from_end ? count - 1 : 0;
  Index row = 0;
  for (; row + kScannedRows <= rows; row += kScannedRows) {
    float sums[kScannedRows] = {};
    for (Index i = 0, place = row * count + start; i < count; ++i, place += step) {
      for (Index r = 0; r < kScannedRows; ++r) {
        sums[r] += scalar(from + place + r * count);
        set(to + place + r * count, sums[r]);
      }
    }
  }
  for (; row < rows; ++row) {
    float sum = 0.0f;
    for (Index i = 0, place = row * count + start; i < count; ++i, place += step) {
      sum += scalar(from + place);
      set(to + place, sum);
    }
  }
}

// The columns of `count` rows, in chunks of a vector.
template <typename T>
void cumsum_columns(const void* src, void* dst, Index count, Index stride, Index width,
                    bool from_end) {
  const auto* from = static_cast<const T*>(src);
  auto* to = static_cast<T*>(dst);
  float sums[kMaxColumns + kMaxLanes] = {};
  for (Index i = 0; i < count; ++i) {
    const Index row = (from_end ? count - 1 - i : i) * stride;
    for_vectors(width, [&](Index c, Index lanes) {
      const Floats now = load(sums + c) + load_lanes(from + row + c, lanes);
      store(sums + c, now);
      store_lanes(to + row + c, now, lanes);
    });
  }
}

PYDLBENCH_INLINE Ints lane_numbers() {
  Ints lane;
  for (int i = 0; i < kLanes; ++i) lane[i] = i;
  return lane;
}

// The largest of `sign` times each number, and the index of the first one of that size.
template <typename T>
void extreme_row(const void* src, Index count, float sign, float* value, std::int32_t* index) {
  const auto* from = static_cast<const T*>(src);
  Floats most = broadcast(scalar(from) * sign);
  Ints places = {}, now = lane_numbers();
  Index i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Floats x = load(from + i) * sign;
    const Ints larger = x > most;
    most = larger ? x : most;
    places = larger ? now : places;
    now += kLanes;
  }
  float best = most[0];
  std::int32_t at = places[0];
  for (int lane = 1; lane < kLanes; ++lane) {
    if (most[lane] > best || (most[lane] == best && places[lane] < at)) {
      best = most[lane];
      at = places[lane];
    }
  }
  for (; i < count; ++i) {
    const float x = scalar(from + i) * sign;
    if (x > best) {
      best = x;
      at = static_cast<std::int32_t>(i);
    }
  }
  *value = best * sign;
  *index = at;
}

// The same of up to kMaxColumns columns; there is room for a vector behind the results.
template <typename T>
void extreme_columns(const void* src, Index count, Index stride, Index width, float sign,
                     float* values, std::int32_t* indices) {
  const auto* from = static_cast<const T*>(src);
  for_vectors(width, [&](Index c, Index lanes) {
    Floats most = load_lanes(from + c, lanes) * sign;
    Ints places = {};
    for (Index i = 1; i < count; ++i) {
      const Floats x = load_lanes(from + i * stride + c, lanes) * sign;
      const Ints larger = x > most;
      most = larger ? x : most;
      places = larger ? Ints{} + static_cast<std::int32_t>(i) : places;
    }
    store(values + c, most * sign);
    __builtin_memcpy(indices + c, &places, sizeof places);
  });
}

// Numbers whose maximum is found before their exponentials are added.
constexpr Index kChunk = 4096;

template <typename T>
float log_sum_exp_row(const void* src, Index count) {
  const auto* from = static_cast<const T*>(src);
  float most = scalar(from), sum = 0.0f;
  for (Index first = 0; first < count; first += kChunk) {
    const Index length = count - first < kChunk ? count - first : kChunk;
    const float before = most;
    Floats top = broadcast(most);
    for_vectors(length, [&](Index i, Index lanes) {
      Floats x = load_lanes(from + first + i, lanes);
      if (lanes < kLanes) x = lane_numbers() < static_cast<std::int32_t>(lanes) ? x : top;
      top = x > top ? x : top;
    });
    most = largest(top);
    Floats sums = broadcast(0.0f);
    for_vectors(length, [&](Index i, Index lanes) {
      const Floats e = exponential(load_lanes(from + first + i, lanes) - most);
      sums += lanes < kLanes ? first_lanes(e, lanes) : e;
    });
    sum = sum * exponential(broadcast(before - most))[0] + total(sums);
  }
  return most + logarithm(broadcast(sum))[0];
}

template <typename T>
void log_sum_exp_columns(const void* src, Index count, Index stride, Index width, float* results) {
  constexpr Index kRows = 32;
  const auto* from = static_cast<const T*>(src);
  for_vectors(width, [&](Index c, Index lanes) {
    Floats most = load_lanes(from + c, lanes), sum = broadcast(0.0f);
    for (Index first = 0; first < count; first += kRows) {
      const Index last = first + kRows < count ? first + kRows : count;
      const Floats before = most;
      for (Index i = first; i < last; ++i) {
        const Floats x = load_lanes(from + i * stride + c, lanes);
        most = x > most ? x : most;
      }
      sum *= exponential(before - most);
      for (Index i = first; i < last; ++i) {
        sum += exponential(load_lanes(from + i * stride + c, lanes) - most);
      }
    }
    store(results + c, most + logarithm(sum));
  });
}

}  // namespace
}  // namespace pydlbench::cpu::pointwise::PYDLBENCH_ISA
