// Stored number formats as kernels see them: each converts to float and back, rounding to nearest,
// ties to even.
#pragma once

#include <cstdint>
#include <cstring>

#include "cuda/simt/simt.hpp"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#endif

namespace pydlbench::cuda {

#ifdef __CUDACC__

using half_t = __half;
using bfloat16_t = __nv_bfloat16;
using float8_t = __nv_fp8_e4m3;

template <typename T>
__host__ __device__ __forceinline__ float to_float(T value) {
  return static_cast<float>(value);
}
template <>
__host__ __device__ __forceinline__ float to_float(half_t value) {
  return __half2float(value);
}
template <>
__host__ __device__ __forceinline__ float to_float(bfloat16_t value) {
  return __bfloat162float(value);
}
template <typename T>
__host__ __device__ __forceinline__ T from_float(float value) {
  return static_cast<T>(value);
}
template <>
__host__ __device__ __forceinline__ half_t from_float<half_t>(float value) {
  return __float2half_rn(value);
}
template <>
__host__ __device__ __forceinline__ bfloat16_t from_float<bfloat16_t>(float value) {
  return __float2bfloat16_rn(value);
}

#else

struct half_t {
  std::uint16_t bits;
};
struct bfloat16_t {
  std::uint16_t bits;
};
struct float8_t {
  std::uint8_t bits;
};

template <typename T>
inline float to_float(T value) {
  return static_cast<float>(value);
}
template <typename T>
inline T from_float(float value) {
  return static_cast<T>(value);
}

namespace simt {
// Round a float to `significand` bits with exponents from `least` (smaller ones are subnormal).
inline float rounded(float value, int significand, int least) {
  if (!std::isfinite(value) || value == 0.0f) return value;
  int exponent = 0;
  std::frexp(value, &exponent);
  const int spacing = (exponent > least ? exponent : least) - significand;
  return std::ldexp(
      static_cast<float>(std::nearbyint(std::ldexp(static_cast<double>(value), -spacing))),
      spacing);
}
inline float power(int exponent) { return std::ldexp(1.0f, exponent); }
// Packs a value that is exact in the format; exponents are biased by `bias`.
inline std::uint32_t packed(float value, int fraction_bits, int bias) {
  const std::uint32_t sign = std::signbit(value) ? 1u : 0u;
  const float size = std::fabs(value);
  if (size == 0.0f) return sign << 31;
  int exponent = std::ilogb(size);
  if (exponent < 1 - bias) {
    return sign << 31 | static_cast<std::uint32_t>(std::ldexp(size, bias - 1 + fraction_bits));
  }
  const auto fraction =
      static_cast<std::uint32_t>(std::ldexp(size / power(exponent) - 1.0f, fraction_bits));
  return sign << 31 | static_cast<std::uint32_t>(exponent + bias) << fraction_bits | fraction;
}
inline float unpacked(std::uint32_t bits, int fraction_bits, int bias) {
  const auto exponent = static_cast<int>(bits >> fraction_bits);
  const auto fraction = static_cast<float>(bits & ((1u << fraction_bits) - 1));
  if (exponent == 0) return std::ldexp(fraction, 1 - bias - fraction_bits);
  return std::ldexp(1.0f + std::ldexp(fraction, -fraction_bits), exponent - bias);
}
}  // namespace simt

template <>
inline float to_float(half_t value) {
  const float sign = value.bits & 0x8000 ? -1.0f : 1.0f;
  const std::uint32_t size = value.bits & 0x7fffu;
  if (size > 0x7c00u) return NAN;
  if (size == 0x7c00u) return sign * INFINITY;
  return sign * simt::unpacked(size, 10, 15);
}
template <>
inline half_t from_float<half_t>(float value) {
  if (std::isnan(value)) return {0x7fff};
  const float near = simt::rounded(value, 11, -13);
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::fabs(near) > 65504.0f) return {static_cast<std::uint16_t>(sign | 0x7c00)};
  return {static_cast<std::uint16_t>(sign | (simt::packed(std::fabs(near), 10, 15) & 0x7fffu))};
}
template <>
inline float to_float(bfloat16_t value) {
  const std::uint32_t bits = static_cast<std::uint32_t>(value.bits) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}
template <>
inline bfloat16_t from_float<bfloat16_t>(float value) {
  if (std::isnan(value)) return {0x7fff};
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  bits += 0x7fffu + (bits >> 16 & 1u);
  return {static_cast<std::uint16_t>(bits >> 16)};
}
template <>
inline float to_float(float8_t value) {
  const std::uint32_t size = value.bits & 0x7fu;
  if (size == 0x7fu) return NAN;
  return (value.bits & 0x80 ? -1.0f : 1.0f) * simt::unpacked(size, 3, 7);
}
template <>
inline float8_t from_float<float8_t>(float value) {
  if (std::isnan(value)) return {0x7f};
  float near = simt::rounded(value, 4, -5);
  if (std::fabs(near) > 448.0f) near = std::copysign(448.0f, near);
  const std::uint8_t sign = std::signbit(value) ? 0x80 : 0;
  return {static_cast<std::uint8_t>(sign | (simt::packed(std::fabs(near), 3, 7) & 0x7fu))};
}

#endif

}  // namespace pydlbench::cuda
