// The gate that delays launches until the host has enqueued a whole sample, which hides the time of
// enqueueing.
//
// One thread spins on a number in host memory. Every closing takes the next ticket, and the gate is
// open for all tickets up to that number. The number never decreases, so that no kernel can miss an
// opening. A time-out ends the spinning if the host waits, directly or in a library, for work
// behind the gate, and so cannot open it.
#pragma once

#include <cstdint>

#include "cuda/sampling/kernels.hpp"
#include "cuda/simt.hpp"

namespace pydlbench::cuda {

// Tickets wrap around.
__host__ __device__ inline bool gate_is_open(std::uint32_t opened, std::uint32_t ticket) {
  return static_cast<std::int32_t>(opened - ticket) >= 0;
}

// Polls `opened()` until the gate is open for `ticket`, or `now()` (nanoseconds) has advanced by
// the time-out; returns whether it was opened.
template <typename Opened, typename Now>
__device__ inline bool wait_at_gate(Opened opened, Now now, std::uint32_t ticket,
                                    std::uint64_t timeout_ns) {
  const std::uint64_t begin = now();
  while (!gate_is_open(opened(), ticket)) {
    if (now() - begin >= timeout_ns) return false;
  }
  return true;
}

}  // namespace pydlbench::cuda
