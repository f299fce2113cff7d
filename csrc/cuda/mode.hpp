// Precision modes (storage and arithmetic) of GPU kernels, and the GPUs that support them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "core/error.hpp"
#include "core/problem.hpp"

namespace pydlbench::cuda {

enum class Mode {
  fp32,
  tf32,
  fp16,
  fp16_tc,
  bf16_tc,
  fp8_tc,
  fp8_tc_fast,
  int8,
  mxfp8_tc,
  nvfp4_tc
};
// float4_e2m1: two in a byte, the first in its lower half.
enum class DataType { float32, float16, bfloat16, float8_e4m3, int32, int8, float4_e2m1 };

struct ModeFacts {
  Mode mode;
  const char* name;
  DataType storage;  // of operands
  DataType result;
  bool on_tensor_cores;  // whether tensor cores are required or excluded
  int least_capability;  // major x 10 + minor of the oldest GPUs that support it
};

// In the order of Mode.
inline constexpr ModeFacts kModeFacts[] = {
    {Mode::fp32, "fp32", DataType::float32, DataType::float32, false, 50},
    {Mode::tf32, "tf32", DataType::float32, DataType::float32, true, 80},
    {Mode::fp16, "fp16", DataType::float16, DataType::float16, false, 53},
    {Mode::fp16_tc, "fp16-tc", DataType::float16, DataType::float16, true, 70},
    {Mode::bf16_tc, "bf16-tc", DataType::bfloat16, DataType::bfloat16, true, 80},
    {Mode::fp8_tc, "fp8-tc", DataType::float8_e4m3, DataType::float8_e4m3, true, 89},
    {Mode::fp8_tc_fast, "fp8-tc-fast", DataType::float8_e4m3, DataType::float8_e4m3, true, 89},
    {Mode::int8, "int8", DataType::int8, DataType::int32, true, 75},
    {Mode::mxfp8_tc, "mxfp8-tc", DataType::float8_e4m3, DataType::bfloat16, true, 100},
    {Mode::nvfp4_tc, "nvfp4-tc", DataType::float4_e2m1, DataType::bfloat16, true, 100},
};

constexpr const ModeFacts& facts_of(Mode mode) {
  return kModeFacts[static_cast<std::size_t>(mode)];
}
constexpr DataType storage(Mode mode) { return facts_of(mode).storage; }
constexpr DataType result_type(Mode mode) { return facts_of(mode).result; }
constexpr bool on_tensor_cores(Mode mode) { return facts_of(mode).on_tensor_cores; }
constexpr const char* name_of(Mode mode) { return facts_of(mode).name; }
// Operands with one scale.
constexpr bool is_fp8(Mode mode) { return result_type(mode) == DataType::float8_e4m3; }
// Number of operands' elements with a common scale; 0 in other modes.
constexpr int scale_block(Mode mode) {
  return mode == Mode::mxfp8_tc ? 32 : mode == Mode::nvfp4_tc ? 16 : 0;
}
// Operands of 8 bits and less, which only sums of products have.
constexpr bool is_narrow(Mode mode) { return mode >= Mode::fp8_tc; }

inline Mode mode_of(std::string_view name) {
  std::string choices;
  for (const auto& mode : kModeFacts) {
    if (mode.name == name) return mode.mode;
    choices += (choices.empty() ? "" : ", ") + std::string(mode.name);
  }
  throw Unsupported(std::string(name) + " is not a GPU mode; there is: " + choices);
}

inline Pass pass_of(std::string_view name) {
  if (name == "forward-inference") return Pass::forward_inference;
  if (name == "forward-training") return Pass::forward_training;
  if (name == "backward-data") return Pass::backward_data;
  if (name == "backward-weights") return Pass::backward_weights;
  throw Unsupported("pass " + std::string(name) +
                    ": no such pass; there is: forward-inference, "
                    "forward-training, backward-data, backward-weights");
}

constexpr std::size_t bytes_of(DataType type) {
  switch (type) {
    case DataType::float32:
    case DataType::int32:
      return 4;
    case DataType::float16:
    case DataType::bfloat16:
      return 2;
    case DataType::float8_e4m3:
    case DataType::int8:
    case DataType::float4_e2m1:  // of two
      return 1;
  }
  return 0;
}

// The smallest positive number with all significand bits; smaller numbers have a constant spacing,
// and so the same absolute rounding error. 0 for integers.
constexpr double smallest_normal(DataType type) {
  switch (type) {
    case DataType::float32:
    case DataType::bfloat16:
      return 0x1p-126;
    case DataType::float16:
      return 0x1p-14;
    case DataType::float8_e4m3:
      return 0x1p-6;
    case DataType::int32:
    case DataType::int8:
    case DataType::float4_e2m1:
      break;
  }
  return 0.0;
}

// Throws Unsupported if GPUs of this compute capability (major x 10 + minor) lack the mode.
inline void require_capability(Mode mode, int capability) {
  const int least = facts_of(mode).least_capability;
  if (capability >= least) return;
  const auto dotted = [](int both) {
    return std::to_string(both / 10) + "." + std::to_string(both % 10);
  };
  throw Unsupported("this GPU (compute capability " + dotted(capability) + ") has no " +
                    name_of(mode) + ": it needs " + dotted(least));
}

}  // namespace pydlbench::cuda
