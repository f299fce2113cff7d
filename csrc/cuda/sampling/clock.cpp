#include "cuda/sampling/clock.hpp"

namespace pydlbench::cuda {

namespace {

// Limits of a GPU's clock. Values outside mean that a counter was reset.
constexpr double kSlowestHz = 50e6, kFastestHz = 5e9;

// Accepts an interval of a few steps of the timer, which is summed with others first.
bool plausible(const ClockInterval& interval) {
  const double hz = interval.cycles / interval.seconds;
  return interval.seconds < kShortestClockInterval || (hz >= kSlowestHz && hz <= kFastestHz);
}

bool written(const ClockStamp& stamp) { return stamp.nanoseconds != 0; }

}  // namespace

std::optional<ClockInterval> clock_interval(const ClockStamp* first, const ClockStamp* last,
                                            std::size_t count) {
  for (std::size_t sm = 0; sm < count; ++sm) {
    if (!written(first[sm]) || !written(last[sm])) continue;
    // Skip an invalid pair, not the sample: the next multiprocessor may have a valid one.
    if (last[sm].cycles <= first[sm].cycles) continue;
    if (last[sm].nanoseconds <= first[sm].nanoseconds) continue;
    const ClockInterval interval{
        static_cast<double>(last[sm].cycles - first[sm].cycles),
        1e-9 * static_cast<double>(last[sm].nanoseconds - first[sm].nanoseconds)};
    if (!plausible(interval)) continue;
    return interval;
  }
  return std::nullopt;
}

std::vector<double> clock_readings(const std::vector<std::optional<ClockInterval>>& samples) {
  std::vector<double> each;
  ClockInterval sum{0, 0};
  for (const auto& sample : samples) {
    if (!sample || !plausible(*sample)) continue;
    sum.cycles += sample->cycles;
    sum.seconds += sample->seconds;
    if (sample->seconds >= kShortestClockInterval) each.push_back(sample->cycles / sample->seconds);
  }
  if (each.size() == samples.size()) return each;
  if (sum.seconds < kShortestClockInterval || !plausible(sum)) return {};
  return {sum.cycles / sum.seconds};
}

}  // namespace pydlbench::cuda
