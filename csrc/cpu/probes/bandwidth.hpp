// Memory and cache bandwidth: read, write, copy and triad over a working set of a given size.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "team.hpp"

namespace pydlbench::cpu {

// B/s of all `cpus` together for `kind` "read", "write", "copy" or "triad".
//
// `bytes` is the whole working set: split over the threads, then over the pattern's arrays, each
// thread's part mapped and first touched by itself (with huge pages where the kernel gives them).
// Take at least three times the last-level cache for memory, with `streaming` stores; a share of
// the cache without them. Bytes are counted as the pattern names them, as STREAM does: read 1,
// write 1, copy 2, triad 3 arrays; what a plain store reads first (write-allocate) is not counted.
// Throws std::invalid_argument for another kind or less than 4096 bytes per array and thread,
// OutOfMemory when the memory cannot be mapped.
ProbeResult bandwidth(const std::string& kind, std::size_t bytes, const std::vector<int>& cpus,
                      double seconds, bool streaming);

}  // namespace pydlbench::cpu
