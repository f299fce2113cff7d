// A vector of floats of the instruction set's width, with loads and stores.
//
// Included once per instruction set, each time into another namespace. It must not use templates of
// the standard library: the linker might choose the copy of the widest set for all callers.
#pragma once

#include <cstddef>
#include <cstdint>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "cpu/pointwise/kernels.hpp"

#define PYDLBENCH_INLINE inline __attribute__((always_inline))

namespace pydlbench::cpu::pointwise::PYDLBENCH_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef std::int32_t Ints __attribute__((vector_size(4 * kLanes)));
typedef std::uint32_t Words __attribute__((vector_size(4 * kLanes)));
typedef std::uint8_t Bytes __attribute__((vector_size(kLanes)));
typedef std::uint16_t Halves __attribute__((vector_size(2 * kLanes)));

struct Bfloat16 {
  std::uint16_t bits;
};

PYDLBENCH_INLINE Floats broadcast(float value) { return Floats{} + value; }

PYDLBENCH_INLINE Floats widened(Halves bits) {
  return (Floats)(__builtin_convertvector(bits, Words) << 16);
}
// Rounds to bfloat16, to nearest, ties to even.
PYDLBENCH_INLINE Halves narrowed(Floats values) {
  Words bits = (Words)values;
  bits += 0x7fff + ((bits >> 16) & 1);
  return __builtin_convertvector(bits >> 16, Halves);
}

PYDLBENCH_INLINE Floats load(const float* from) {
  Floats values;
  __builtin_memcpy(&values, from, sizeof values);
  return values;
}
PYDLBENCH_INLINE Floats load(const Bfloat16* from) {
  Halves bits;
  __builtin_memcpy(&bits, from, sizeof bits);
  return widened(bits);
}
PYDLBENCH_INLINE void store(float* to, Floats values) {
  __builtin_memcpy(to, &values, sizeof values);
}
PYDLBENCH_INLINE void store(Bfloat16* to, Floats values) {
  const Halves bits = narrowed(values);
  __builtin_memcpy(to, &bits, sizeof bits);
}

// The first `count` lanes only, fewer than all; the others are zero.
template <typename T>
PYDLBENCH_INLINE Floats load_first(const T* from, Index count) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4) {
    return (Floats)_mm512_maskz_loadu_ps((__mmask16)((1U << count) - 1), from);
  } else {
    return widened((Halves)_mm256_maskz_loadu_epi16((__mmask16)((1U << count) - 1), from));
  }
#else
  T some[kLanes] = {};
  for (Index i = 0; i < count; ++i) some[i] = from[i];
  return load(some);
#endif
}
template <typename T>
PYDLBENCH_INLINE float element(const T* from) {
  return load_first(from, 1)[0];
}
template <typename T>
PYDLBENCH_INLINE void store_first(T* to, Floats values, Index count) {
#if defined(__AVX512F__)
  if constexpr (sizeof(T) == 4) {
    _mm512_mask_storeu_ps(to, (__mmask16)((1U << count) - 1), (__m512)values);
  } else {
    _mm256_mask_storeu_epi16(to, (__mmask16)((1U << count) - 1), (__m256i)narrowed(values));
  }
#else
  T some[kLanes];
  store(some, values);
  for (Index i = 0; i < count; ++i) to[i] = some[i];
#endif
}

PYDLBENCH_INLINE void stream(float* to, Floats values) {
#if defined(__AVX512F__)
  _mm512_stream_ps(to, (__m512)values);
#elif defined(__AVX2__)
  _mm256_stream_ps(to, (__m256)values);
#else
  store(to, values);
#endif
}
PYDLBENCH_INLINE void stream(Bfloat16* to, Floats values) {
#if defined(__AVX512F__)
  _mm256_stream_si256((__m256i*)to, (__m256i)narrowed(values));
#elif defined(__AVX2__)
  _mm_stream_si128((__m128i*)to, (__m128i)narrowed(values));
#else
  store(to, values);
#endif
}
template <typename T>
PYDLBENCH_INLINE bool may_stream(const T* to) {
  return reinterpret_cast<std::uintptr_t>(to) % (sizeof(T) * kLanes) == 0;
}

PYDLBENCH_INLINE float total(Floats values) {
  float lane[kLanes];
  store(lane, values);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lane[i] += lane[i + width];
  }
  return lane[0];
}
PYDLBENCH_INLINE float largest(Floats values) {
  float result = values[0];
  for (int i = 1; i < kLanes; ++i) result = values[i] > result ? values[i] : result;
  return result;
}

// Calls `body(i, lanes)` for vectors of `count` elements; the last one may be shorter.
template <typename Body>
PYDLBENCH_INLINE void for_vectors(Index count, Body&& body) {
  Index i = 0;
#pragma GCC unroll 4
  for (; i + kLanes <= count; i += kLanes) body(i, Index{kLanes});
  if (i < count) body(i, count - i);
}
template <typename T>
PYDLBENCH_INLINE Floats load_lanes(const T* from, Index lanes) {
  return lanes == kLanes ? load(from) : load_first(from, lanes);
}
template <typename T>
PYDLBENCH_INLINE void store_lanes(T* to, Floats values, Index lanes) {
  if (lanes == kLanes) {
    store(to, values);
  } else {
    store_first(to, values, lanes);
  }
}

// dst[i] = value(i, lanes), with streaming stores if requested and possible.
template <typename T, typename Value>
PYDLBENCH_INLINE void fill(T* dst, Index count, bool streaming, Value&& value) {
  if (streaming && may_stream(dst)) {
    for_vectors(count, [&](Index i, Index lanes) __attribute__((always_inline)) {
      const Floats values = value(i, lanes);
      if (lanes == kLanes) {
        stream(dst + i, values);
      } else {
        store_first(dst + i, values, lanes);
      }
    });
  } else {
    for_vectors(count, [&](Index i, Index lanes) __attribute__((always_inline)) {
      store_lanes(dst + i, value(i, lanes), lanes);
    });
  }
}

}  // namespace
}  // namespace pydlbench::cpu::pointwise::PYDLBENCH_ISA
