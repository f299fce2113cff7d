// The probes: what this CPU reaches at its core clock, its FMA units, its memory and its threads.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cpu/probes/rounds.hpp"

namespace pydlbench::cpu {

// The core clock is read from a chain of dependent instructions of known latency. No performance
// counter is needed, so it works in virtual machines: the multiplier returns a 32-bit product after
// 3 core cycles on every x86-64 core since Nehalem, Zen and Goldmont (tables of uops.info and Agner
// Fog), and a chain in which each product needs the last one cannot overlap. The 32-bit form is
// used because Intel's efficiency cores need 5 cycles for the 64-bit one.
inline constexpr int kClockChain = 16384;  // multiplications, about 10 to 20 us

// Core clock of the CPU that the calling thread runs on, in Hz, over `iterations` dependent
// multiplications (rounded up to the unrolled loop's 16; at least 1024). The best of five chains is
// returned: an interrupt only makes a chain longer. Throws Unsupported on other architectures and
// std::invalid_argument for iterations < 1.
double core_clock_hz(int iterations = kClockChain);

// FLOP/s of all `cpus` together in "fp32", "bf16" or "fp16", with no memory access in the loop.
// Lasts about `seconds` plus a few milliseconds of warm-up. Throws Unsupported and
// std::invalid_argument as run_rounds does, and where the CPU, the system or the
// compiler of this module lacks the instructions.
ProbeResult fma_peak(const std::string& precision, const std::vector<int>& cpus, double seconds);

// FLOP/s of the FMA units in a burst of 0.3 ms on all threads, as many times the
// slowest thread's own rate as there are threads. Whoever else uses a core, even a neighbour
// outside the virtual machine whom no counter shows, halves what its FMA units do here, whatever is
// being timed. On the threads of the OpenMP pool, or, so that none of these spins afterwards, on
// threads of its own pinned to `cpus`. Throws Unsupported as fma_peak does.
double fma_burst(const std::vector<int>& cpus = {});

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

// What it costs to start a kernel on all threads, whatever the kernel does: seconds from entering
// an empty parallel region of the OpenMP pool to leaving it, the best of several medians, back to
// back: the threads are awake, as they are between the samples of a hot kernel. Throws Unsupported
// where this module was built without OpenMP.
double launch_seconds();

}  // namespace pydlbench::cpu
