// Keeping the device busy with one kernel for a while, so that its power can be read beside it.
#pragma once

#include <cstddef>

#include "cuda/sampling/sampler.hpp"

namespace pydlbench::cuda {

struct Load {
  std::size_t executions;
  double seconds;  // on the host's clock, from the first launch to the end of the last
};

// Launches the work back to back for about `seconds`, as graphs, a bounded time ahead of the
// device. Rotates through the work's sets. On every way out the stream is empty.
Load run_for(Calls& calls, Work& work, double seconds);

}  // namespace pydlbench::cuda
