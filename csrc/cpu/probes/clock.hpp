// The core clock really reached, from a chain of dependent instructions of known latency.
//
// No performance counter is needed, so it works in virtual machines: the multiplier returns a
// 32-bit product after 3 core cycles on every x86-64 core since Nehalem, Zen and Goldmont (tables
// of uops.info and Agner Fog), and a chain in which each product needs the last one cannot overlap.
// The 32-bit form is used because Intel's efficiency cores need 5 cycles for the 64-bit one.
#pragma once

namespace pydlbench::cpu {

inline constexpr int kClockChain = 16384;  // multiplications, about 10 to 20 us

// Core clock of the CPU that the calling thread runs on, in Hz, over `iterations` dependent
// multiplications (rounded up to the unrolled loop's 16; at least 1024). The best of five chains is
// returned: an interrupt only makes a chain longer. Throws Unsupported on other architectures and
// std::invalid_argument for iterations < 1.
double core_clock_hz(int iterations = kClockChain);

}  // namespace pydlbench::cpu
