// The probes of CUDA cores, memory and launches.
#pragma once

#include <cstddef>
#include <string>

#include "cuda/probes/rounds.hpp"
#include "cuda/runtime/device.hpp"
#include "cuda/sampling/sampler.hpp"

namespace pydlbench::cuda {

// FLOP/s of the whole GPU in "fp32" (FFMA) or "fp16" (HFMA2: pairs, float16 accumulation), without
// a memory access in the loop. Lasts about 1.3 x `seconds`. Throws Unsupported for another
// precision, and what run_rounds() throws.
ProbeResult fma_peak(const Device& device, const std::string& precision, double seconds);

// B/s of "read", "write" or "copy" (bytes read plus bytes written) over a working set of `bytes`,
// half of it source and half destination for copies. Well below the L2 cache's size it is the
// bandwidth of the cache; from four times that size on it is the bandwidth of the memory. Returns
// the fastest of a few launch shapes. Lasts about 2 x `seconds`. Throws Unsupported for another
// kind, OutOfMemory, std::invalid_argument for a working set below one chunk, and exceptions of
// run_rounds().
ProbeResult bandwidth(const Device& device, const std::string& kind, std::size_t bytes,
                      double seconds);

// Seconds per empty kernel: on the GPU without pauses (event_s), as a node of a graph (graph_s),
// and the host's time per launch (host_s).
LaunchTimes launch_seconds(const Device& device);

}  // namespace pydlbench::cuda
