#include "cuda/probes/rounds.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "core/error.hpp"

namespace pydlbench::cuda {
namespace {

constexpr double kLongestRound = 5e-3;
constexpr double kShortestRound = 5e-4;
constexpr int kWantedRounds = 20;
constexpr int kMinRounds = 5;
constexpr int kCalibrationSteps = 40;  // each raises the scale at most eight-fold

struct Round {
  double seconds;
  std::optional<ClockInterval> clock;
};

Round run(Calls& calls, const ProbeLaunch& launch, std::uint32_t scale) {
  calls.stamp(Mark::first);
  calls.record(Mark::first);
  launch(scale);
  calls.record(Mark::last);
  calls.stamp(Mark::last);
  calls.wait();
  const double seconds = calls.elapsed_seconds();
  if (!std::isfinite(seconds) || seconds <= 0) {
    throw PrimitiveFailure("probe", "the time between two events reads " + std::to_string(seconds));
  }
  return {seconds, calls.clock_interval()};
}

// The scale for rounds of about `target` seconds. The first round also loads the kernel.
std::uint32_t calibrated(Calls& calls, const ProbeLaunch& launch, double target,
                         std::uint32_t max_scale) {
  run(calls, launch, 1);
  double scale = 1;
  for (int step = 0; step < kCalibrationSteps; ++step) {
    const double seconds = run(calls, launch, static_cast<std::uint32_t>(scale)).seconds;
    if (seconds >= 0.7 * target || scale >= max_scale) break;
    // Short rounds are mostly launch overhead, so limit the steps.
    const double next =
        std::min({scale * 8, std::ceil(scale * target / seconds), static_cast<double>(max_scale)});
    if (next <= scale) break;
    scale = next;
  }
  return static_cast<std::uint32_t>(scale);
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 != 0 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double hertz(const std::optional<ClockInterval>& clock) {
  return clock && clock->seconds > 0 ? clock->cycles / clock->seconds : 0;
}

}  // namespace

ProbeResult run_rounds(Calls& calls, double seconds, double work_per_scale, std::uint32_t max_scale,
                       const ProbeLaunch& launch) {
  PYDLBENCH_CHECK(seconds > 0, "a probe of " + std::to_string(seconds) + " seconds");
  PYDLBENCH_CHECK(max_scale > 0, "a probe without work");
  const double target = std::clamp(seconds / kWantedRounds, kShortestRound, kLongestRound);
  const std::uint32_t scale = calibrated(calls, launch, target, max_scale);
  for (double spent = 0; spent < seconds / 4;) spent += run(calls, launch, scale).seconds;

  std::vector<double> times, clocks;
  ProbeResult found;
  double best = 0;
  while (found.rounds < kMinRounds || found.seconds < seconds) {
    const Round round = run(calls, launch, scale);
    const double hz = hertz(round.clock);
    if (hz > 0) clocks.push_back(hz);
    if (times.empty() || round.seconds < best) {
      best = round.seconds;
      found.clock_hz = hz;
    }
    times.push_back(round.seconds);
    found.seconds += round.seconds;
    ++found.rounds;
  }
  const double work = work_per_scale * scale;
  found.per_second = work / best;
  found.median_per_second = work / median(times);
  found.median_clock_hz = median(clocks);
  return found;
}

}  // namespace pydlbench::cuda
