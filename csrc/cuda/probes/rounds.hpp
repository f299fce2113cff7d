// Repeated rounds of one kernel between two events, with rate and clock.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "cuda/sampling/calls.hpp"

namespace pydlbench::cuda {

// Result of a probe; rates are FLOP/s or B/s. A clock of 0 could not be read.
struct ProbeResult {
  double per_second = 0;         // best round
  double median_per_second = 0;  // median over the rounds
  double clock_hz = 0;           // during the best round
  double median_clock_hz = 0;    // median over the rounds
  double seconds = 0;            // sum of the rounds' times
  int rounds = 0;
  std::string kernel;  // name of the kernel
};

// Enqueues one launch with `scale` times the work.
using ProbeLaunch = std::function<void(std::uint32_t scale)>;

// Runs rounds for about `seconds`, after a quarter of that in which the clock settles.
//
// `work_per_scale` is the work of a launch of scale 1, in FLOP or bytes; `max_scale` limits the
// scale. Scales are calibrated so that a round lasts a few milliseconds: much longer than the
// microsecond between an event and a kernel, and long enough for the clock stamps around it. Throws
// std::invalid_argument for seconds <= 0, PrimitiveFailure if events give no time.
ProbeResult run_rounds(Calls& calls, double seconds, double work_per_scale, std::uint32_t max_scale,
                       const ProbeLaunch& launch);

}  // namespace pydlbench::cuda
