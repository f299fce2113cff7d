// The normalisation of a row by the root of its mean square, times a weight for each element.
#pragma once

#include "cpu/pointwise/isa/functions.hpp"

namespace pydlbench::cpu::pointwise::PYDLBENCH_ISA {
namespace {

PYDLBENCH_INLINE float inverse_root(float square_sum, Index count, float epsilon) {
  return 1.0f / root(broadcast(square_sum / static_cast<float>(count) + epsilon))[0];
}

template <typename T>
void rmsnorm(const void* src, const void* weights, void* dst, Index count, float epsilon) {
  const auto* x = static_cast<const T*>(src);
  const auto* w = static_cast<const T*>(weights);
  Floats squares = broadcast(0.0f);
  for_vectors(count, [&](Index i, Index lanes) {
    const Floats values = load_lanes(x + i, lanes);
    squares += values * values;
  });
  const float factor = inverse_root(total(squares), count, epsilon);
  fill(static_cast<T*>(dst), count, false, [&](Index i, Index lanes) {
    return load_lanes(x + i, lanes) * factor * load_lanes(w + i, lanes);
  });
}

// With r = 1 / sqrt(mean(x^2) + epsilon): dx = r w dy - x r^3 mean(w dy x), and dy x r is added to
// the sums.
template <typename T>
void rmsnorm_gradient(const void* src, const void* dst, const void* weights, void* gradient,
                      float* sums, Index count, float epsilon) {
  const auto* x = static_cast<const T*>(src);
  const auto* dy = static_cast<const T*>(dst);
  const auto* w = static_cast<const T*>(weights);
  Floats squares = broadcast(0.0f), products = squares;
  for_vectors(count, [&](Index i, Index lanes) {
    const Floats values = load_lanes(x + i, lanes);
    squares += values * values;
    products += values * load_lanes(dy + i, lanes) * load_lanes(w + i, lanes);
  });
  const float r = inverse_root(total(squares), count, epsilon);
  const float slope = r * r * r * (total(products) / static_cast<float>(count));
  fill(static_cast<T*>(gradient), count, false, [&](Index i, Index lanes) {
    const Floats values = load_lanes(x + i, lanes), given = load_lanes(dy + i, lanes) * r;
    store_lanes(sums + i, load_lanes(sums + i, lanes) + given * values, lanes);
    return given * load_lanes(w + i, lanes) - values * slope;
  });
}

}  // namespace
}  // namespace pydlbench::cpu::pointwise::PYDLBENCH_ISA
