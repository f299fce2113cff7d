#include "cuda/sampling/sampler.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "core/error.hpp"
#include "cuda/sampling/guards.hpp"

namespace pydlbench::cuda {

namespace {

// Duration and largest number of launches of a loop in launch_times().
constexpr double kLoopSeconds = 2e-3;
constexpr double kMaxLoopLaunches = 32;
// Limit of its total time, so that slow executions have fewer repetitions.
constexpr double kLaunchTimesSeconds = 0.5;
constexpr int kMinRepetitions = 3;

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return 0.5 * (*middle + *std::max_element(values.begin(), middle));
}

std::size_t rounded_up(std::size_t count, std::size_t multiple) {
  return (count + multiple - 1) / multiple * multiple;
}

}  // namespace

Sampler::Sampler(Calls& calls, Work& work, CacheState cache, Timing timing,
                 std::vector<Prefetch> prefetches)
    : calls_(calls),
      work_(work),
      cache_(cache),
      timing_(timing),
      prefetches_(std::move(prefetches)) {
  PYDLBENCH_CHECK(work.sets() >= 1, "a work without operands");
  PYDLBENCH_CHECK(cache == CacheState::hot || timing == Timing::events || work.sets() >= 2,
                  "a cold graph needs two sets of operands or more to rotate");
  PYDLBENCH_CHECK(timing == Timing::events || work.known_launches() == 0,
                  "a work that is never captured is timed with events");
}

SampleResult Sampler::sample(const SampleRequest& request) {
  const bool cold = cache_ != CacheState::hot;
  PYDLBENCH_CHECK(request.samples >= 1 && request.inner >= 1 && request.untimed >= 0,
                  "samples and inner must be at least 1, untimed at least 0");
  PYDLBENCH_CHECK(!cold || timing_ == Timing::graph || request.inner == 1,
                  "a cold sample on events is one execution: inner must be 1");
  const double begin = calls_.host_seconds();
  auto inner = static_cast<std::size_t>(request.inner);
  if (timing_ == Timing::graph) inner = rounded_up(inner, work_.sets());
  SampleResult result;
  std::vector<std::optional<ClockInterval>> clocks;
  result.seconds.reserve(static_cast<std::size_t>(request.samples));
  clocks.reserve(static_cast<std::size_t>(request.samples));

  run_once_ungated();
  run_untimed(static_cast<std::size_t>(request.untimed), inner);
  const bool flush = cold && timing_ == Timing::events;
  for (int i = 0; i < request.samples; ++i) {
    const auto reading = take(inner, timing_, flush, true, &result.gate_timeouts);
    result.seconds.push_back(reading.seconds / static_cast<double>(inner));
    result.enqueue_seconds.push_back(reading.enqueue_seconds / static_cast<double>(inner));
    clocks.push_back(reading.clock);
  }
  result.clock_hz = clock_readings(clocks);
  result.wall_seconds = calls_.host_seconds() - begin;
  return result;
}

LaunchTimes Sampler::launch_times(int repetitions) {
  PYDLBENCH_CHECK(repetitions >= 1, "repetitions must be at least 1");
  run_once_ungated();
  int timeouts = 0;
  const double one = take(1, Timing::events, false, false, &timeouts).seconds;
  const auto count =
      static_cast<std::size_t>(std::clamp(std::ceil(kLoopSeconds / one), 1.0, kMaxLoopLaunches));
  const auto each = static_cast<double>(count);
  const bool in_graph = can_be_captured(count);

  std::vector<double> single, event, graph, host, wall;
  const double start = calls_.host_seconds();
  for (int i = 0; i < repetitions; ++i) {
    if (i >= kMinRepetitions && calls_.host_seconds() - start > kLaunchTimesSeconds) break;
    single.push_back(take(1, Timing::events, false, false, &timeouts).seconds);
    event.push_back(take(count, Timing::events, false, false, &timeouts).seconds / each);
    if (in_graph) {
      graph.push_back(take(count, Timing::graph, false, false, &timeouts).seconds / each);
    }
    Draining stream(calls_);
    const double begin = calls_.host_seconds();
    for (std::size_t j = 0; j < count; ++j) work_.enqueue(0, calls_.stream());
    const double enqueued = calls_.host_seconds();
    stream.wait();
    host.push_back((enqueued - begin) / each);
    wall.push_back((calls_.host_seconds() - begin) / each);
  }
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  return {median(single), median(event), in_graph ? median(graph) : kNone, median(host),
          median(wall)};
}

// Errors during capture mean only that a library does not support it. A lost device has another
// exception.
bool Sampler::can_be_captured(std::size_t executions) {
  if (work_.known_launches() > 0) return false;
  try {
    graph(std::min(executions, most_per_round(Timing::graph, false)), false);
  } catch (const PrimitiveFailure&) {
    return false;
  } catch (const Unsupported&) {
    return false;
  }
  return true;
}

bool Sampler::is_gated() {
  run_once_ungated();
  return is_gated(Timing::events);
}

bool Sampler::is_gated(Timing timing) const {
  const auto most = timing == Timing::graph ? kMaxGraphLaunches : kMaxGatedLaunches;
  return calls_.has_gate() && launches_ <= most;
}

void Sampler::run_once_ungated() {
  if (launches_ > 0) return;
  Draining stream(calls_);
  work_.enqueue(0, calls_.stream());
  stream.wait();
  launches_ = work_.known_launches() > 0 ? work_.known_launches() : count_launches();
  max_gated_ = std::max<std::size_t>(1, kMaxGatedLaunches / launches_);
  max_in_graph_ = std::max<std::size_t>(1, kMaxGraphLaunches / launches_);
}

std::size_t Sampler::count_launches() {
  try {
    Capture capture(calls_);
    capture.begin();
    work_.enqueue(0, calls_.stream());
    return capture.end()->launches();
  } catch (const PrimitiveFailure&) {
  } catch (const Unsupported&) {
  }
  return kLaunchesOfKernel * work_.kernels();
}

// Like timed executions, because the next launch of a graph expects its sets in that state.
void Sampler::run_untimed(std::size_t executions, std::size_t inner) {
  const bool in_graph = timing_ == Timing::graph;
  const auto most = most_per_round(timing_, true);
  for (std::size_t done = 0; done < executions;) {
    const auto now = in_graph ? std::min(inner, most) : std::min(executions - done, most);
    const Round round{now, timing_, false, true};
    auto* executable = in_graph ? &graph(now, true) : nullptr;
    Draining stream(calls_);
    enqueue(round, executable);
    stream.wait();
    done += now;
  }
}

// Takes one sample, and repeats it if the gate times out.
Sampler::Reading Sampler::take(std::size_t executions, Timing timing, bool cold, bool rotate,
                               int* timeouts) {
  for (int attempt = 0; attempt <= kMaxGateRepeats; ++attempt) {
    if (const auto reading = try_rounds(executions, timing, cold, rotate)) return *reading;
    ++*timeouts;
    // Most likely the launches filled the queue, so that the host waited for the gate.
    auto& most = timing == Timing::events ? max_gated_ : max_in_graph_;
    if (executions > 1) most = std::max<std::size_t>(1, std::min(most, executions) / 2);
  }
  throw PrimitiveFailure("launch gate", "timed out " + std::to_string(kMaxGateRepeats + 1) +
                                            " times: enqueueing the kernel waits for the device");
}

std::optional<Sampler::Reading> Sampler::try_rounds(std::size_t executions, Timing timing,
                                                    bool cold, bool rotate) {
  const auto most = most_per_round(timing, rotate);
  Reading sum;
  sum.clock = ClockInterval{0, 0};
  for (std::size_t done = 0; done < executions;) {
    const auto now = std::min(executions - done, most);
    const auto reading = try_round({now, timing, cold, rotate});
    if (!reading) return std::nullopt;
    done += now;
    sum.seconds += reading->seconds;
    sum.enqueue_seconds += reading->enqueue_seconds;
    if (!reading->clock) continue;
    sum.clock->cycles += reading->clock->cycles;
    sum.clock->seconds += reading->clock->seconds;
  }
  if (sum.clock->seconds == 0) sum.clock.reset();
  return sum;
}

std::optional<Sampler::Reading> Sampler::try_round(const Round& round) {
  // Make the graph and the cache's state before timing.
  auto* executable =
      round.timing == Timing::graph ? &graph(round.executions, round.rotate) : nullptr;
  if (round.cold) {
    Draining stream(calls_);
    calls_.flush_l2();
    if (cache_ == CacheState::weights_cold) {
      for (const auto& tensor : prefetches_) calls_.prefetch(tensor);
    }
    stream.wait();
  }
  const bool gated = is_gated(round.timing);
  ClosedGate gate(calls_);
  if (gated) gate.close();
  calls_.stamp(Mark::first);
  calls_.record(Mark::first);
  const double begin = calls_.host_seconds();
  enqueue(round, executable);
  const double enqueue_seconds = calls_.host_seconds() - begin;
  calls_.record(Mark::last);
  calls_.stamp(Mark::last);
  gate.open_and_wait();
  if (gated && calls_.gate_timed_out()) return std::nullopt;
  const double seconds = calls_.elapsed_seconds();
  if (!std::isfinite(seconds) || seconds <= 0) {
    throw PrimitiveFailure("CUDA events",
                           "an elapsed time of " + std::to_string(seconds) + " s is none");
  }
  return Reading{seconds, enqueue_seconds, calls_.clock_interval()};
}

void Sampler::enqueue(const Round& round, Calls::Executable* executable) {
  if (executable != nullptr) {
    calls_.launch(*executable);
    return;
  }
  for (std::size_t i = 0; i < round.executions; ++i) {
    work_.enqueue(next_set(round.rotate), calls_.stream());
  }
}

// A graph of `executions` executions, starting with the first set. It is launched once, because the
// first launch is slower, and later ones expect the state of the caches after a launch.
Calls::Executable& Sampler::graph(std::size_t executions, bool rotate) {
  auto& kept = graphs_[{executions, rotate}];
  if (kept) return *kept;
  std::unique_ptr<Calls::Captured> captured;
  {
    Capture capture(calls_);
    capture.begin();
    for (std::size_t i = 0; i < executions; ++i) {
      work_.enqueue(rotate ? i % work_.sets() : 0, calls_.stream());
    }
    captured = capture.end();
  }
  auto executable = calls_.instantiate(*captured);
  Draining stream(calls_);
  calls_.upload(*executable);
  calls_.launch(*executable);
  stream.wait();
  kept = std::move(executable);
  return *kept;
}

std::size_t Sampler::most_per_round(Timing timing, bool rotate) const {
  if (timing == Timing::events) return max_gated_;
  // The graph must end with the last set, because the next launch begins with the first one.
  const auto sets = rotate ? work_.sets() : 1;
  return std::max<std::size_t>(1, max_in_graph_ / sets) * sets;
}

std::size_t Sampler::next_set(bool rotate) {
  if (!rotate) return 0;
  return std::exchange(next_, (next_ + 1) % work_.sets());
}

}  // namespace pydlbench::cuda
