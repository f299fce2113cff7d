// What it costs to start a kernel on all threads, whatever the kernel does.
#pragma once

namespace pydlbench::cpu {

// Seconds from entering an empty parallel region of the OpenMP pool to leaving it, the best
// of several medians, back to back: the threads are awake, as they are between the samples of a hot
// kernel. Throws Unsupported where this module was built without OpenMP.
double launch_seconds();

}  // namespace pydlbench::cpu
