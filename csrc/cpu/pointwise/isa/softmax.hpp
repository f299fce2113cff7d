// Softmax with cross entropy, row by row.
#pragma once

#include "cpu/pointwise/isa/functions.hpp"

namespace pydlbench::cpu::pointwise::PYDLBENCH_ISA {
namespace {

template <typename T>
float softmax(const void* logits, void* probabilities, Index count, Index label, float* buffer) {
  const auto* from = static_cast<const T*>(logits);
  Floats most = broadcast(element(from));
  for_vectors(count, [&](Index i, Index lanes) {
    // Absent lanes repeat the first element.
    Floats x = load_lanes(from + i, lanes);
    if (lanes < kLanes) {
      for (Index lane = lanes; lane < kLanes; ++lane) x[lane] = most[0];
    }
    most = x > most ? x : most;
  });
  const float top = largest(most);
  Floats sums = broadcast(0.0f);
  for_vectors(count, [&](Index i, Index lanes) {
    const Floats e = exponential(load_lanes(from + i, lanes) - top);
    if (lanes == kLanes) {
      store(buffer + i, e);
      sums += e;
    } else {
      store_first(buffer + i, e, lanes);
      sums += load_first(buffer + i, lanes);
    }
  });
  const float sum = total(sums);
  const float factor = 1.0f / sum;
  fill(static_cast<T*>(probabilities), count, false,
       [&](Index i, Index lanes) { return load_lanes(buffer + i, lanes) * factor; });
  return logarithm(broadcast(sum))[0] - (element(from + label) - top);
}

template <typename T>
void softmax_gradient(const void* probabilities, void* dx, Index count, Index label, float scale) {
  const auto* from = static_cast<const T*>(probabilities);
  auto* to = static_cast<T*>(dx);
  fill(to, count, false, [&](Index i, Index lanes) { return load_lanes(from + i, lanes) * scale; });
  store_first(to + label, (load_first(from + label, 1) - 1.0f) * scale, 1);
}

}  // namespace
}  // namespace pydlbench::cpu::pointwise::PYDLBENCH_ISA
