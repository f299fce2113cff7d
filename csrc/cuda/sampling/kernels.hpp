// Launchers of the sampler's own kernels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/sampling/clock.hpp"

struct CUstream_st;

namespace pydlbench::cuda {

// What the host and the gate's kernel tell each other; see gate.cuh.
// In host memory that the device sees; apart, so that polling one does not touch the other.
struct GateFlags {
  alignas(128) std::uint32_t opened;     // written by the host
  alignas(128) std::uint32_t timed_out;  // the last ticket whose time was over; by the device
};

// The numbers of multiprocessors that a stamp has room for; numbers may have gaps.
inline constexpr std::size_t kStampSlots = 1024;

// Holds the stream until the gate is open for `ticket`, at most `timeout_ns`. `flags` is host
// memory by its address on the device.
void launch_gate(GateFlags* flags, std::uint32_t ticket, std::uint64_t timeout_ns,
                 CUstream_st* stream);

// Writes stamps[n] for every multiprocessor n that a block lands on: nearly always all of them.
// `stamps` has kStampSlots elements.
void launch_stamp(ClockStamp* stamps, int multiprocessors, CUstream_st* stream);

// Reads every byte into the L2 cache; see read.cuh.
void launch_read(const void* data, std::size_t bytes, int multiprocessors, std::uint32_t* sum,
                 CUstream_st* stream);

}  // namespace pydlbench::cuda
