// Root, exponential and logarithm of vectors. The polynomials are from S. L. Moshier's Cephes
// library (expf.c, logf.c), good to about two units in the last place.
#pragma once

#include "cpu/pointwise/isa/vector.hpp"

namespace pydlbench::cpu::pointwise::PYDLBENCH_ISA {
namespace {

PYDLBENCH_INLINE Floats root(Floats x) {
#if defined(__AVX512F__)
  return (Floats)_mm512_sqrt_ps((__m512)x);
#elif defined(__AVX2__)
  return (Floats)_mm256_sqrt_ps((__m256)x);
#elif defined(__SSE2__)
  return (Floats)_mm_sqrt_ps((__m128)x);
#else
  for (int lane = 0; lane < kLanes; ++lane) x[lane] = __builtin_sqrtf(x[lane]);
  return x;
#endif
}

// e^x for x clamped to -87 .. 88.
PYDLBENCH_INLINE Floats exponential(Floats x) {
  const Floats least = broadcast(-87.0f), most = broadcast(88.0f);
  x = x < least ? least : x;
  x = x > most ? most : x;
  // Adding 1.5 x 2^23 rounds to an integer, and leaves it in the lowest bits.
  const Floats shifted = x * 1.44269504f + 12582912.0f;
  const Floats whole = shifted - 12582912.0f;
  // ln 2 in two pieces: the first times an integer is exact.
  const Floats r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
  Floats p = broadcast(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const Floats fraction = p * (r * r) + r + 1.0f;
  return fraction * (Floats)(((Words)shifted + 127) << 23);
}

// ln x for normal, positive numbers.
PYDLBENCH_INLINE Floats logarithm(Floats x) {
  // The power of two next to x, such that the rest lies between the roots of 1/2 and 2.
  const Ints exponent = ((Ints)x - 0x3f3504f3) >> 23;
  const Floats m = (Floats)((Ints)x - (exponent << 23)) - 1.0f;
  const Floats e = __builtin_convertvector(exponent, Floats);
  Floats p = broadcast(7.0376836292e-2f);
  p = p * m - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  const Floats square = m * m;
  const Floats rest = square * m * p - e * 2.12194440e-4f - square * 0.5f;
  return m + rest + e * 0.693359375f;
}

}  // namespace
}  // namespace pydlbench::cpu::pointwise::PYDLBENCH_ISA
