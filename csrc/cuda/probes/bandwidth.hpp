// How many bytes per second the device memory or the L2 cache really delivers.
#pragma once

#include <cstddef>
#include <string>

#include "cuda/probes/rounds.hpp"
#include "cuda/runtime/device.hpp"

namespace pydlbench::cuda {

// B/s of "read", "write" or "copy" (bytes read and bytes written counted) over a working set of
// `bytes`, half of it source and half destination for copies. Well below the L2 cache's size it is
// the cache's bandwidth, from four times that size on the memory's. The fastest of a few launch
// shapes counts. Lasts about 2 x `seconds`. Throws Unsupported for another kind, OutOfMemory,
// std::invalid_argument for a working set below one chunk, and what run_rounds() throws.
ProbeResult bandwidth(const Device& device, const std::string& kind, std::size_t bytes,
                      double seconds);

}  // namespace pydlbench::cuda
