// The clock that a sample ran at, from what the multiprocessors' own counters said before and
// after.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace pydlbench::cuda {

// What one multiprocessor wrote: its cycle counter and the GPU's nanosecond timer, read together.
// All zero where no block ran there.
struct alignas(16) ClockStamp {
  std::uint64_t cycles;
  std::uint64_t nanoseconds;
};

struct ClockInterval {
  double cycles, seconds;
};

// Shorter intervals are not divided on their own: the nanosecond timer advances in steps of up to
// about a microsecond, which at 200 us is half a percent.
inline constexpr double kShortestClockInterval = 200e-6;

// From the stamps of `count` multiprocessors. Cycle counters of different multiprocessors have
// nothing to do with each other, so both stamps come from the same one: the first (usually SM 0)
// that wrote both. Nothing where none did, where a counter ran backwards or was reset, or where the
// quotient is no clock rate that a GPU has.
std::optional<ClockInterval> clock_interval(const ClockStamp* first, const ClockStamp* last,
                                            std::size_t count);

// One reading in Hz per sample where every sample has an interval that is long enough; else one
// for all of them, from the summed cycles over the summed times of those that have one; and none
// where even the sum is too short.
std::vector<double> clock_readings(const std::vector<std::optional<ClockInterval>>& samples);

}  // namespace pydlbench::cuda
