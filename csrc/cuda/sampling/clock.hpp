// The clock during a sample, from the multiprocessors' counters before and after it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace pydlbench::cuda {

// One multiprocessor's cycle counter and the GPU's nanosecond timer, read together. Zeros if no
// block ran there.
struct alignas(16) ClockStamp {
  std::uint64_t cycles;
  std::uint64_t nanoseconds;
};

struct ClockInterval {
  double cycles, seconds;
};

// Shorter intervals are summed with others: the nanosecond timer has steps of up to about a
// microsecond, which is half a percent of 200 us.
inline constexpr double kShortestClockInterval = 200e-6;

// The interval between stamps of `count` multiprocessors. Cycle counters of different
// multiprocessors are independent, so both stamps are of the first one (usually SM 0) that wrote
// both. Nothing if there is none, if a counter was reset, or if the quotient is no possible clock.
std::optional<ClockInterval> clock_interval(const ClockStamp* first, const ClockStamp* last,
                                            std::size_t count);

// One reading in Hz per sample if all intervals are long enough; otherwise one for all samples,
// from the summed cycles and times; none if even the sum is too short.
std::vector<double> clock_readings(const std::vector<std::optional<ClockInterval>>& samples);

}  // namespace pydlbench::cuda
