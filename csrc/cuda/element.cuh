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
