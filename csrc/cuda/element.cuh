// Access to elements of a tensor whose number format is known only at run time.
//
// All threads take the same branch, so it costs little compared with the memory access.
#pragma once

#include <cstdint>

#include "cuda/simt.hpp"
#include "cuda/tensor.hpp"

namespace pydlbench::cuda {

template <typename T>
__device__ __forceinline__ float load_as(const void* data, std::int64_t index) {
  return to_float(static_cast<const T*>(data)[index]);
}

template <typename T>
__device__ __forceinline__ void store_as(void* data, std::int64_t index, float value) {
  static_cast<T*>(data)[index] = from_float<T>(value);
}

// The lowest four bits: sign, two of exponent, one of significand.
__device__ inline float float4_value(int code) {
  const int exponent = code >> 1 & 3, digit = code & 1;
  const float size = exponent == 0 ? 0.5f * static_cast<float>(digit)
                                   : static_cast<float>((2 + digit) << exponent) / 4.0f;
  return code & 8 ? -size : size;
}

// The code of a value, which must be one of the format.
__device__ inline int float4_code(float value) {
  const float size = value < 0 ? -value : value;
  int code = 7;
  while (code > 0 && float4_value(code) > size) --code;
  return value < 0 ? code | 8 : code;
}

__device__ inline float load(const void* data, DataType type, std::int64_t index) {
  switch (type) {
    case DataType::float32:
      return load_as<float>(data, index);
    case DataType::float16:
      return load_as<half_t>(data, index);
    case DataType::bfloat16:
      return load_as<bfloat16_t>(data, index);
    case DataType::float8_e4m3:
      return load_as<float8_t>(data, index);
    case DataType::int32:
      return load_as<std::int32_t>(data, index);
    case DataType::int8:
      return load_as<std::int8_t>(data, index);
    case DataType::float4_e2m1:
      return float4_value(static_cast<const std::uint8_t*>(data)[index / 2] >> index % 2 * 4);
  }
  return 0.0f;
}

__device__ inline void store(void* data, DataType type, std::int64_t index, float value) {
  switch (type) {
    case DataType::float32:
      return store_as<float>(data, index, value);
    case DataType::float16:
      return store_as<half_t>(data, index, value);
    case DataType::bfloat16:
      return store_as<bfloat16_t>(data, index, value);
    case DataType::float8_e4m3:
      return store_as<float8_t>(data, index, value);
    case DataType::int32:
      return store_as<std::int32_t>(data, index, value);
    case DataType::int8:
      return store_as<std::int8_t>(data, index, value);
    case DataType::float4_e2m1:
      return;  // two threads would write the same byte: pack_kernel writes pairs
  }
}

// The offset of the element with a dense row-major index.
__device__ inline std::int64_t offset(const View& view, std::int64_t index) {
  std::int64_t result = 0;
  for (int axis = view.rank - 1; axis >= 0; --axis) {
    const auto rest = index / view.dims[axis];
    result += (index - rest * view.dims[axis]) * view.strides[axis];
    index = rest;
  }
  return result;
}

}  // namespace pydlbench::cuda
