// Selection of cuDNN's engines by precision mode, from the notes on their arithmetic. cuDNN has no
// option to exclude TF32 or tensor cores from a graph; it only reports their use.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cuda/mode.hpp"

namespace pydlbench::cuda::cudnn {

using Notes = std::vector<std::string>;

// cudnnBackendNumericalNote_t, by value. Unknown notes of a newer cuDNN exclude an engine: see
// `objection`.
inline std::string numerical_note(std::int64_t value) {
  switch (value) {
    case 0:
      return "TENSOR_CORE";
    case 1:
      return "DOWN_CONVERT_INPUTS";
    case 2:
      return "REDUCED_PRECISION_REDUCTION";
    case 3:
      return "FFT";
    case 4:
      return "NONDETERMINISTIC";
    case 5:
      return "WINOGRAD";
    case 6:
      return "WINOGRAD_TILE_4x4";
    case 7:
      return "WINOGRAD_TILE_6x6";
    case 8:
      return "WINOGRAD_TILE_13x13";
    case 9:
      return "STRICT_NAN_PROP";
    default:
      return "NUMERICAL_NOTE_" + std::to_string(value);
  }
}

// cudnnBackendBehaviorNote_t, by value.
inline std::string behavior_note(std::int64_t value) {
  switch (value) {
    case 0:
      return "RUNTIME_COMPILATION";
    case 1:
      return "REQUIRES_FILTER_INT8x32_REORDER";
    case 2:
      return "REQUIRES_BIAS_INT8x32_REORDER";
    case 3:
      return "SUPPORTS_CUDA_GRAPH_NATIVE_API";
    case 4:
      return "CUBLASLT_DEPENDENCY";
    default:
      return "BEHAVIOR_NOTE_" + std::to_string(value);
  }
}

inline bool has(const Notes& notes, const std::string& name) {
  return std::find(notes.begin(), notes.end(), name) != notes.end();
}

// The reason why an engine with these numerical notes does not belong to the mode; nothing if it
// does.
//
// All modes require float32 accumulation except fp16, which records the accumulator. FFT and
// Winograd are accepted, because they change only the error; the check of the result knows them by
// name.
inline std::optional<std::string> objection(Mode mode, const Notes& notes) {
  for (const auto& note : notes) {
    if (note.rfind("NUMERICAL_NOTE_", 0) == 0) return "its note " + note + " is unknown";
  }
  if (mode == Mode::int8) return std::nullopt;  // exact sums, and not all such engines have notes
  if (on_tensor_cores(mode) && !has(notes, "TENSOR_CORE")) return "it leaves tensor cores unused";
  if (!on_tensor_cores(mode) && has(notes, "TENSOR_CORE")) return "it uses tensor cores";
  if (has(notes, "DOWN_CONVERT_INPUTS")) return "it rounds its inputs to a smaller format";
  if (mode != Mode::fp16 && has(notes, "REDUCED_PRECISION_REDUCTION")) {
    return "it sums in less than float32";
  }
  return std::nullopt;
}

// The accumulator of an engine of the mode.
inline std::string accumulator(DataType compute, const Notes& notes) {
  if (compute == DataType::int32) return "int32";
  const bool half = compute == DataType::float16 || has(notes, "REDUCED_PRECISION_REDUCTION");
  return half ? "float16" : "float32";
}

// "winograd 4x4", "winograd", "fft", or empty for a direct or implicit-GEMM kernel.
inline std::string transform(const Notes& notes) {
  for (const char* tile : {"4x4", "6x6", "13x13"}) {
    if (has(notes, std::string("WINOGRAD_TILE_") + tile)) return std::string("winograd ") + tile;
  }
  if (has(notes, "WINOGRAD")) return "winograd";
  if (has(notes, "FFT")) return "fft";
  return "";
}

}  // namespace pydlbench::cuda::cudnn
