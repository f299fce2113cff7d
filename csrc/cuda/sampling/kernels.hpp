// Launchers of the sampler's own kernels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/sampling/clock.hpp"

struct CUstream_st;

namespace pydlbench::cuda {

// Communication between the host and the gate's kernel, see gate.cuh, in host memory that the
// device can access. On separate cache lines, so that polling one does not affect the other.
struct GateFlags {
  alignas(128) std::uint32_t opened;     // written by the host
  alignas(128) std::uint32_t timed_out;  // the last ticket that timed out; written by the device
};

// Elements of a stamp, by number of multiprocessor; numbers may have gaps.
inline constexpr std::size_t kStampSlots = 1024;

// Delays the stream until the gate is open for `ticket`, at most `timeout_ns`. `flags` is the
// device address of host memory.
void launch_gate(GateFlags* flags, std::uint32_t ticket, std::uint64_t timeout_ns,
                 CUstream_st* stream);

// Writes stamps[n] for every multiprocessor n that runs a block: nearly always all of them.
// `stamps` has kStampSlots elements.
void launch_stamp(ClockStamp* stamps, int multiprocessors, CUstream_st* stream);

// Reads every byte into the L2 cache; see read.cuh.
void launch_read(const void* data, std::size_t bytes, int multiprocessors, std::uint32_t* sum,
                 CUstream_st* stream);

}  // namespace pydlbench::cuda
