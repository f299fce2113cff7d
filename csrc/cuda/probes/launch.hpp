// What it costs to start a kernel that does nothing.
#pragma once

#include "cuda/runtime/device.hpp"
#include "cuda/sampling/sampler.hpp"

namespace pydlbench::cuda {

// Seconds per empty kernel: on the GPU back to back (event_s), as a node of a graph (graph_s), and
// of the host's time per launch (host_s).
LaunchTimes launch_seconds(const Device& device);

}  // namespace pydlbench::cuda
