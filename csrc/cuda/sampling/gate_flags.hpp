// What the host and the gate's kernel tell each other; see gate.cuh.
#pragma once

#include <cstdint>

namespace pydlbench::cuda {

// In host memory that the device sees; apart, so that polling one does not touch the other.
struct GateFlags {
  alignas(128) std::uint32_t opened;     // written by the host
  alignas(128) std::uint32_t timed_out;  // the last ticket whose time was over; by the device
};

}  // namespace pydlbench::cuda
