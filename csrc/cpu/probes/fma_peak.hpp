// The highest rate at which this CPU's FMA units really run.
#pragma once

#include <string>
#include <vector>

#include "team.hpp"

namespace pydlbench::cpu {

// FLOP/s of all `cpus` together in "fp32", "bf16" or "fp16", with no memory access in the loop.
// Lasts about `seconds` plus a few milliseconds of warm-up. Throws Unsupported and
// std::invalid_argument as choose_fma_kernel and run_rounds do.
ProbeResult fma_peak(const std::string& precision, const std::vector<int>& cpus, double seconds);

}  // namespace pydlbench::cpu
