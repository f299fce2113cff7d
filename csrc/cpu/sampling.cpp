#include "cpu/sampling.hpp"

#include "core/error.hpp"
#include "cpu/counters.hpp"
#include "cpu/probes/probes.hpp"

namespace pydlbench::cpu {

namespace {

// Interval of the readings of the core clock, in seconds, and the number of dependent
// multiplications of a reading: five times 6 us at 4 GHz, much longer than the timer's 25 ns and
// much shorter than the interval.
constexpr double kClockPeriod = 2e-3;
constexpr int kClockIterations = 8192;

// Appends the core clock, or nothing if it cannot be read (not x86-64).
void read_clock(std::vector<double>& readings) {
  static bool readable = true;
  if (!readable) return;
  try {
    readings.push_back(core_clock_hz(kClockIterations));
  } catch (const Unsupported&) {
    readable = false;
  }
}

}  // namespace

Chunk take_chunk(const SampleRequest& request, const std::vector<int>& cpus,
                 const std::function<void(int)>& execute, const std::function<void(int)>& before) {
  const auto [samples, inner, untimed, with_bursts] = request;
  PYDLBENCH_CHECK(samples > 0 && inner > 0 && untimed >= 0, "at least one sample of one execution");
  Chunk chunk{};
  chunk.seconds.reserve(static_cast<std::size_t>(samples));
  if (with_bursts) chunk.bursts.push_back(fma_burst());
  const auto delays_before = run_queue_delays();
  const double stolen_before = stolen_time(cpus);
  const double chunk_start = now();
  double clock_read = chunk_start;
  if (untimed > 0) execute(untimed);
  for (int i = 0; i < samples; ++i) {
    if (before) before(inner);
    const double start = now();
    execute(inner);
    const double end = now();
    chunk.seconds.push_back((end - start) / inner);
    // Right after the load, while the core still has the load's clock.
    if (end - clock_read >= kClockPeriod || i + 1 == samples) {
      read_clock(chunk.clock_hz);
      clock_read = now();
    }
  }
  chunk.wall_seconds = now() - chunk_start;
  chunk.run_delay_seconds = longest_delay_since(delays_before);
  chunk.steal_seconds = stolen_time(cpus) - stolen_before;
  if (with_bursts) chunk.bursts.push_back(fma_burst());
  return chunk;
}

}  // namespace pydlbench::cpu
