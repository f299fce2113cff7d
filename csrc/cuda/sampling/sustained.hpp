// Keeps the device busy with one kernel for a while, for readings of its power.
#pragma once

#include <cstddef>

#include "cuda/sampling/sampler.hpp"

namespace pydlbench::cuda {

struct Load {
  std::size_t executions;
  double seconds;  // on the host's clock, from the first launch to the end of the last
};

// Launches the work without pauses for about `seconds`, as graphs, a limited time ahead of the
// device. Rotates through the work's sets. The stream is empty afterwards, also after an exception.
Load run_for(Calls& calls, Work& work, double seconds);

}  // namespace pydlbench::cuda
