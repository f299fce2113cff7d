// Inner loops of the bandwidth probe, in assembly: a compiler may turn them into memcpy or drop
// them.
#pragma once

#include <cstddef>
#include <string>

namespace pydlbench::cpu {

inline constexpr std::size_t kStreamBlock = 256;  // bytes of each array per loop

// One sweep over `blocks` blocks of up to three arrays that are aligned to 64 bytes.
using StreamSweep = void (*)(double* a, const double* b, const double* c, std::size_t blocks);

struct StreamKernel {
  std::string name;  // "triad zmm, non-temporal stores"
  int arrays;        // that a sweep touches: read and write 1, copy 2, triad 3
  StreamSweep sweep;
};

// The loop for `kind`: "read" (a), "write" (a = s), "copy" (a = b) or "triad" (a = b + s c), in the
// widest vectors of this CPU. `streaming` stores go past the caches, which spares the read of the
// line that is written; without it they stay in the caches. Throws std::invalid_argument for
// another kind and Unsupported on other architectures.
StreamKernel choose_stream_kernel(const std::string& kind, bool streaming);

}  // namespace pydlbench::cpu
