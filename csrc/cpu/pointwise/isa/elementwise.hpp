// Loops that map elements to elements: ReLU, sums, dropout and optimizers.
#pragma once

#include "cpu/pointwise/isa/vector.hpp"

namespace pydlbench::cpu::pointwise::PYDLBENCH_ISA {
namespace {

template <typename T>
void copy(const void* src, void* dst, Index count, bool streaming) {
  const auto* from = static_cast<const T*>(src);
  fill(static_cast<T*>(dst), count, streaming,
       [&](Index i, Index lanes) { return load_lanes(from + i, lanes); });
}

template <typename T>
void relu(const void* src, void* dst, Index count, bool streaming) {
  const auto* from = static_cast<const T*>(src);
  const Floats zero = broadcast(0.0f);
  fill(static_cast<T*>(dst), count, streaming, [&](Index i, Index lanes) {
    const Floats x = load_lanes(from + i, lanes);
    return x > zero ? x : zero;
  });
}

template <typename T>
void relu_gradient(const void* x, const void* dy, void* dx, Index count, bool streaming) {
  const auto* source = static_cast<const T*>(x);
  const auto* gradient = static_cast<const T*>(dy);
  const Floats zero = broadcast(0.0f);
  fill(static_cast<T*>(dx), count, streaming, [&](Index i, Index lanes) {
    const Floats incoming = load_lanes(gradient + i, lanes);
    return load_lanes(source + i, lanes) > zero ? incoming : zero;
  });
}

template <typename T>
void add(const void* src, const void* src2, void* dst, Index count, bool streaming) {
  const auto* first = static_cast<const T*>(src);
  const auto* second = static_cast<const T*>(src2);
  fill(static_cast<T*>(dst), count, streaming, [&](Index i, Index lanes) {
    return load_lanes(first + i, lanes) + load_lanes(second + i, lanes);
  });
}

// lowbias32 by C. Wellons (2018) without its last step.
PYDLBENCH_INLINE Words hash_of(Words low, std::uint32_t high) {
  Words h = low ^ (high * 0x9E3779B9U + 0x85EBCA6BU);
  h = (h ^ (h >> 16)) * 0x7FEB352DU;
  return (h ^ (h >> 15)) * 0x846CA68BU;
}

// Dropout of elements whose numbers have the same upper half.
template <typename T>
PYDLBENCH_INLINE void dropout_within(const T* src, T* dst, Index count, std::uint64_t first,
                                     std::uint64_t stride, Kept kept, bool streaming) {
  Words number;
  for (int lane = 0; lane < kLanes; ++lane) {
    number[lane] = static_cast<std::uint32_t>(first + static_cast<std::uint64_t>(lane) * stride);
  }
  const auto high = static_cast<std::uint32_t>(first >> 32);
  const auto step = static_cast<std::uint32_t>(stride);
  const Words last = Words{} + kept.last;
  const Floats zero = broadcast(0.0f);
  fill(dst, count, streaming, [&](Index i, Index lanes) {
    const Words h = hash_of(number + static_cast<std::uint32_t>(i) * step, high);
    return h <= last ? load_lanes(src + i, lanes) * kept.scale : zero;
  });
}

template <typename T>
void dropout(const void* src, void* dst, Index count, std::uint64_t first, std::uint64_t stride,
             Kept kept, bool streaming) {
  const auto* from = static_cast<const T*>(src);
  auto* to = static_cast<T*>(dst);
  while (count > 0) {
    // Number of elements until the lower half overflows.
    const std::uint64_t left = ((first | 0xFFFFFFFFU) - first) / stride + 1;
    const Index now = left < static_cast<std::uint64_t>(count) ? static_cast<Index>(left) : count;
    dropout_within(from, to, now, first, stride, kept, streaming);
    from += now;
    to += now;
    count -= now;
    first += static_cast<std::uint64_t>(now) * stride;
  }
}

template <typename T>
void add_scaled(void* to, const void* from, Index count, float factor) {
  auto* target = static_cast<T*>(to);
  const auto* source = static_cast<const T*>(from);
  fill(target, count, false, [&](Index i, Index lanes) {
    return load_lanes(target + i, lanes) + load_lanes(source + i, lanes) * factor;
  });
}

// In thousands of executions on the same tensors, a velocity without a gradient decreases until it
// is denormal, which is slow on some CPUs. Denormals are treated as zeros here, which makes no
// difference in training.
class WithoutDenormals {
 public:
#if defined(__SSE2__)
  WithoutDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040U); }
  ~WithoutDenormals() { _mm_setcsr(before_); }
  WithoutDenormals(const WithoutDenormals&) = delete;
  WithoutDenormals& operator=(const WithoutDenormals&) = delete;

 private:
  unsigned before_;
#endif
};

template <typename T>
void momentum(void* weights, void* velocity, const void* gradient, Index count, float rate,
              float mu) {
  [[maybe_unused]] const WithoutDenormals guard;
  auto* w = static_cast<T*>(weights);
  auto* v = static_cast<T*>(velocity);
  const auto* g = static_cast<const T*>(gradient);
  for_vectors(count, [&](Index i, Index lanes) {
    const Floats next = load_lanes(v + i, lanes) * mu + load_lanes(g + i, lanes);
    store_lanes(v + i, next, lanes);
    store_lanes(w + i, load_lanes(w + i, lanes) - next * rate, lanes);
  });
}

}  // namespace
}  // namespace pydlbench::cpu::pointwise::PYDLBENCH_ISA
