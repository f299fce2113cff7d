// The probes of core clock, FMA units, memory and threads.
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

// FLOP/s of all `cpus` together in "fp32", "bf16", "fp16" or "int8" (operations on integers count
// alike), with no memory access in the loop. Lasts about `seconds` plus a few milliseconds of
// warm-up. Throws Unsupported and std::invalid_argument as run_rounds does, and Unsupported if the
// CPU, the system or the compiler does not support the instructions.
ProbeResult fma_peak(const std::string& precision, const std::vector<int>& cpus, double seconds);

// FLOP/s of the FMA units in a burst of 0.3 ms on all threads: the slowest thread's rate times the
// number of threads. Any other process on a core, even outside the virtual machine where no counter
// shows it, halves the rate of its FMA units. Runs on the threads of the OpenMP pool; with `cpus`,
// on its own threads pinned to them, so that the pool's threads do not spin afterwards. Throws
// Unsupported as fma_peak does.
double fma_burst(const std::vector<int>& cpus = {});

// B/s of all `cpus` together for `kind` "read", "write", "copy" or "triad".
//
// `bytes` is the whole working set, divided among the threads, then among the pattern's arrays.
// Each thread maps and first touches its own part (with huge pages if available). For memory, use
// at least three times the last-level cache with `streaming` stores; for a cache, a part of it
// without them. Bytes are counted as in STREAM: read 1, write 1, copy 2, triad 3 arrays, without
// the reads of plain stores (write-allocate). Throws std::invalid_argument for another kind or less
// than 4096 bytes per array and thread, OutOfMemory if the memory cannot be mapped.
ProbeResult bandwidth(const std::string& kind, std::size_t bytes, const std::vector<int>& cpus,
                      double seconds, bool streaming);

// The cost of starting a kernel on all threads: seconds of an empty parallel region of the OpenMP
// pool, the best of several medians. Regions run without pauses, so that the threads are awake, as
// between the samples of a hot kernel. Throws Unsupported if this module was built without OpenMP.
double launch_seconds();

}  // namespace pydlbench::cpu
