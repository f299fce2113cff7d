// Timing of executions on a GPU: the order of flush, gate, stamps, events and work, and the
// handling of errors. Independent of CUDA: see calls.hpp.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "cuda/sampling/calls.hpp"

namespace pydlbench::cuda {

// The timed work: one execution on one of `sets()` sets of operands.
struct Work {
  virtual ~Work() = default;
  virtual void enqueue(std::size_t set, CUstream_st* stream) = 0;
  virtual std::size_t sets() const = 0;
  // Number of kernels of an execution. Each is a few launches, assumed to be kLaunchesOfKernel if
  // they cannot be counted by a capture.
  virtual std::size_t kernels() const { return 1; }
  // Number of launches of an execution if known without a capture, else 0. If known, the stream is
  // never captured, which frameworks do not support without preparation.
  virtual std::size_t known_launches() const { return 0; }
};

enum class Timing { events, graph };
enum class CacheState { hot, weights_cold, all_cold };

struct SampleRequest {
  int samples = 1;
  int inner = 1;    // executions per sample
  int untimed = 0;  // executions before the first sample
};

struct SampleResult {
  std::vector<double> seconds;   // per execution, one per sample
  std::vector<double> clock_hz;  // one per sample, or one for all, or none: see clock_readings()
  // The host's time to enqueue an execution, one per sample: hidden by the gate.
  std::vector<double> enqueue_seconds;
  double wall_seconds = 0;  // of the whole call, by the host's clock
  int gate_timeouts = 0;    // samples that were repeated
};

// Medians in seconds per execution, on hot data.
struct LaunchTimes {
  double single_s;  // one execution between two events behind the gate, like a cold sample
  double event_s;   // the same for several launches without pauses
  double graph_s;   // the same for one CUDA graph; NaN if launches cannot be captured
  // The host's time to enqueue one execution, in a loop without synchronisation that ends before
  // the launch queue is full: the cost for a framework's thread.
  double host_s;
  double wall_s;  // that loop including the wait for its end: the time by a host's clock
};

// Largest number of launches behind a closed gate. The driver's queue holds about a thousand; the
// next launch blocks the host, behind a closed gate until its time-out. An execution may have
// several launches (an engine that loops over groups or images), so they are counted by a capture.
// A sample of more executions is taken in several rounds, each with its own gate and events, and
// their times are added. A time-out halves the limit. An execution with more launches runs without
// a gate, and its time includes delays by the host. A graph is one call, but it is unknown how many
// of its nodes the driver submits before the first one starts, so the limit is smaller.
inline constexpr std::size_t kMaxGatedLaunches = 768;
inline constexpr std::size_t kMaxGraphLaunches = 256;
inline constexpr std::size_t kLaunchesOfKernel = 6;
// Largest number of repetitions of a sample whose gate timed out.
inline constexpr int kMaxGateRepeats = 3;

// With events, per round: [cold: flush, weights-cold: prefetch; wait], close gate, stamp, event,
// executions, event, stamp, open gate, wait. With graphs, the executions are one launch of a graph,
// and rotating sets keep caches cold, without flush and prefetch.
//
// Sets rotate from sample to sample. A graph always uses all of them, so `inner` is rounded up to a
// multiple of sets(); seconds are always per execution.
//
// The first execution of a work runs without a gate: loading a kernel waits for the device, which
// would be a deadlock behind a closed gate. The second one is captured to count its launches.
//
// After an exception, the gate is open, the stream is empty, no capture is open, and the sampler
// can be used again (unless the device is lost).
class Sampler {
 public:
  // `calls` and `work` must outlive it. Throws std::invalid_argument for a cold graph with fewer
  // than two sets, and for a graph of work that cannot be captured.
  Sampler(Calls& calls, Work& work, CacheState cache, Timing timing,
          std::vector<Prefetch> prefetches);
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;

  // Throws std::invalid_argument for invalid counts, such as inner > 1 for cold samples with
  // events; PrimitiveFailure if the gate keeps timing out or the elapsed time is invalid; and
  // exceptions of the calls and the work.
  SampleResult sample(const SampleRequest& request);

  // Slow executions have fewer repetitions than requested.
  LaunchTimes launch_times(int repetitions);

  // Whether the host's time to enqueue an execution is hidden between events.
  bool is_gated();

 private:
  // The number of executions of a round, and the way to launch them.
  struct Round {
    std::size_t executions;
    Timing timing;
    bool cold;
    bool rotate;
  };
  struct Reading {
    double seconds = 0;          // summed over executions
    double enqueue_seconds = 0;  // time of the host, summed too
    std::optional<ClockInterval> clock;
  };

  bool is_gated(Timing timing) const;
  bool can_be_captured(std::size_t executions);
  void run_once_ungated();
  std::size_t count_launches();
  void run_untimed(std::size_t executions, std::size_t inner);
  Reading take(std::size_t executions, Timing timing, bool cold, bool rotate, int* timeouts);
  std::optional<Reading> try_rounds(std::size_t executions, Timing timing, bool cold, bool rotate);
  std::optional<Reading> try_round(const Round& round);
  void enqueue(const Round& round, Calls::Executable* graph);
  Calls::Executable& graph(std::size_t executions, bool rotate);
  std::size_t most_per_round(Timing timing, bool rotate) const;
  std::size_t next_set(bool rotate);

  Calls& calls_;
  Work& work_;
  const CacheState cache_;
  const Timing timing_;
  const std::vector<Prefetch> prefetches_;
  std::map<std::pair<std::size_t, bool>, std::unique_ptr<Calls::Executable>> graphs_;
  std::size_t launches_ = 0;                      // of an execution; 0 while none has run
  std::size_t max_gated_ = 1, max_in_graph_ = 1;  // executions
  std::size_t next_ = 0;
};

}  // namespace pydlbench::cuda
