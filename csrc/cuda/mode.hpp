// Storage and arithmetic of a GPU kernel together, and which GPUs have them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "core/error.hpp"
#include "core/problem.hpp"

namespace pydlbench::cuda {

enum class Mode { fp32, tf32, fp16, fp16_tc, bf16_tc, fp8_tc, fp8_tc_fast };
enum class DataType { float32, float16, bfloat16, float8_e4m3, int32, int8 };

inline Mode mode_of(std::string_view name) {
  if (name == "fp32") return Mode::fp32;
  if (name == "tf32") return Mode::tf32;
  if (name == "fp16") return Mode::fp16;
  if (name == "fp16-tc") return Mode::fp16_tc;
  if (name == "bf16-tc") return Mode::bf16_tc;
  if (name == "fp8-tc") return Mode::fp8_tc;
  if (name == "fp8-tc-fast") return Mode::fp8_tc_fast;
  throw Unsupported(std::string(name) +
                    " is not a GPU mode; there is: fp32, tf32, fp16, fp16-tc, "
                    "bf16-tc, fp8-tc, fp8-tc-fast");
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

// What tensors are stored in.
constexpr DataType storage(Mode mode) {
  switch (mode) {
    case Mode::fp32:
    case Mode::tf32:
      return DataType::float32;
    case Mode::fp16:
    case Mode::fp16_tc:
      return DataType::float16;
    case Mode::bf16_tc:
      return DataType::bfloat16;
    case Mode::fp8_tc:
    case Mode::fp8_tc_fast:
      return DataType::float8_e4m3;
  }
  return DataType::float32;
}

// The modes of matrix products only.
constexpr bool is_fp8(Mode mode) { return storage(mode) == DataType::float8_e4m3; }

// Whether the arithmetic must be, or must not be, that of tensor cores: every mode says one of
// both.
constexpr bool on_tensor_cores(Mode mode) { return mode != Mode::fp32 && mode != Mode::fp16; }

// The oldest compute capability (major x 10 + minor) that has the mode.
constexpr int least_capability(Mode mode) {
  switch (mode) {
    case Mode::fp32:
      return 50;
    case Mode::fp16:
      return 53;
    case Mode::fp16_tc:
      return 70;
    case Mode::tf32:
    case Mode::bf16_tc:
      return 80;
    case Mode::fp8_tc:
    case Mode::fp8_tc_fast:
      return 89;
  }
  return 0;
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
      return 1;
  }
  return 0;
}

// The smallest positive number that has all digits of its format; below it, numbers are multiples
// of one step, so that a rounding to nearest is off by as much as at this number. 0 for integers.
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
      break;
  }
  return 0.0;
}

inline const char* name_of(Mode mode) {
  switch (mode) {
    case Mode::fp32:
      return "fp32";
    case Mode::tf32:
      return "tf32";
    case Mode::fp16:
      return "fp16";
    case Mode::fp16_tc:
      return "fp16-tc";
    case Mode::bf16_tc:
      return "bf16-tc";
    case Mode::fp8_tc:
      return "fp8-tc";
    case Mode::fp8_tc_fast:
      return "fp8-tc-fast";
  }
  return "?";
}

// Throws Unsupported where a GPU of this compute capability (major x 10 + minor) lacks the mode.
inline void require_capability(Mode mode, int capability) {
  const int least = least_capability(mode);
  if (capability >= least) return;
  const auto dotted = [](int both) {
    return std::to_string(both / 10) + "." + std::to_string(both % 10);
  };
  throw Unsupported("this GPU (compute capability " + dotted(capability) + ") has no " +
                    name_of(mode) + ": it needs " + dotted(least));
}

}  // namespace pydlbench::cuda
