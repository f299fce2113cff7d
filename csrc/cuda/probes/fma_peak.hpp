// The highest rate at which the CUDA cores really multiply and add.
#pragma once

#include <string>

#include "cuda/probes/rounds.hpp"
#include "cuda/runtime/device.hpp"

namespace pydlbench::cuda {

// FLOP/s of the whole GPU in "fp32" (FFMA) or "fp16" (HFMA2: pairs, float16 accumulation), without
// a memory access in the loop. Lasts about 1.3 x `seconds`. Throws Unsupported for another
// precision, and what run_rounds() throws.
ProbeResult fma_peak(const Device& device, const std::string& precision, double seconds);

}  // namespace pydlbench::cuda
