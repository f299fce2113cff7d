// Repeated rounds of one kernel between two events, and what they say about rate and clock.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "cuda/sampling/calls.hpp"

namespace pydlbench::cuda {

// What one probe found; rates are FLOP/s or B/s. A clock of 0 was not to be read.
struct ProbeResult {
  double per_second = 0;         // best round
  double median_per_second = 0;  // median over the rounds
  double clock_hz = 0;           // during the best round
  double median_clock_hz = 0;    // median over the rounds
  double seconds = 0;            // sum of the rounds' times
  int rounds = 0;
  std::string kernel;  // what ran
};

// Enqueues one launch that does `scale` times the work.
using ProbeLaunch = std::function<void(std::uint32_t scale)>;

// Runs rounds for about `seconds` and a quarter of that before them, while the clock settles.
//
// `work_per_scale` is what a launch of scale 1 does, in FLOP or bytes; `most_scale` bounds the
// scale. Scales are calibrated so that a round lasts a few milliseconds: long against the
// microsecond between an event and a kernel, and long enough for the clock stamps around it. Throws
// std::invalid_argument for seconds <= 0, PrimitiveFailure where events do not tell a time.
ProbeResult run_rounds(Calls& calls, double seconds, double work_per_scale,
                       std::uint32_t most_scale, const ProbeLaunch& launch);

}  // namespace pydlbench::cuda
