// Whether a GPU has a mode.
#pragma once

#include <string>

#include "core/error.hpp"
#include "cuda/mode.hpp"

namespace pydlbench::cuda {

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
