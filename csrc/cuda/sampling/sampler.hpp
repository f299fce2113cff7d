// Times executions on a GPU: the order of flush, gate, stamps, events and work, and what happens
// when one of them fails. Knows no CUDA: see calls.hpp.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "cuda/sampling/calls.hpp"

namespace pydlbench::cuda {

// What is timed: one execution on one of `sets()` sets of operands.
struct Work {
  virtual ~Work() = default;
  virtual void enqueue(std::size_t set, CUstream_st* stream) = 0;
  virtual std::size_t sets() const = 0;
  // Of how many kernels an execution is made. Each is a few launches, kLaunchesOfKernel at the most
  // where they cannot be counted because a library refuses to be captured.
  virtual std::size_t kernels() const { return 1; }
  // Launches of an execution where they are known without capturing one; 0 where they are not.
  // Then the stream is never captured: a framework that is not told of it would break.
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
  // The host's time to enqueue an execution, one per sample: hidden where there is a gate.
  std::vector<double> enqueue_seconds;
  double wall_seconds = 0;  // of the whole call, on the host's clock
  int gate_timeouts = 0;    // samples that were thrown away and repeated
};

// Medians in seconds per execution, on hot data.
struct LaunchTimes {
  double single_s;  // between two events, one execution behind the gate: what a cold sample is
  double event_s;   // the same of launches back to back
  double graph_s;   // the same launches as one CUDA graph; NaN where they cannot be captured
  // The host's time to enqueue one execution, in a loop without synchronisation that ends before
  // the launch queue can be full: what a framework's thread pays, whatever the GPU does meanwhile.
  double host_s;
  double wall_s;  // that loop together with waiting for its end: what a host's clock would report
};

// Most launches that are enqueued behind a closed gate. The driver's queue takes about a thousand,
// and blocks the host in the next one: behind a closed gate, until its time-out. An execution may
// be several launches (an engine that loops over groups or images), so they are counted in a
// captured one. A sample of more executions is taken in several rounds, each with a gate and events
// of its own, and its times add up. A time-out halves the bound. An execution of more launches than
// that runs without a gate: where the host is slower than the device, that is in the time. A graph
// is one call, but how many of its nodes the driver hands over before the first has begun is its
// secret: there are fewer.
inline constexpr std::size_t kMostGatedLaunches = 768;
inline constexpr std::size_t kMostGraphLaunches = 256;
inline constexpr std::size_t kLaunchesOfKernel = 6;
// A sample whose gate timed out is repeated so often before the kernel is given up.
inline constexpr int kMostGateRepeats = 3;

// With events, per round: [cold: flush, weights-cold: prefetch; wait], gate closed, stamp, event,
// executions, event, stamp, gate opened, wait. With graphs the executions are one launch of a
// graph, and coldness comes from sets that rotate: no flush, no prefetch.
//
// Sets rotate from sample to sample. A graph always runs through all of them, so `inner` is rounded
// up to a multiple of sets(); seconds stay seconds per execution.
//
// The first execution of a work runs without a gate: loading a kernel waits for the device, and
// behind a closed gate that would be a deadlock. The second is captured, only to be counted.
//
// Whatever throws, the gate is open afterwards, the stream is empty, no capture is open, and the
// sampler can be used again (unless the device is lost).
class Sampler {
 public:
  // `calls` and `work` must outlive it. Throws std::invalid_argument for a cold graph without at
  // least two sets, and for a graph of what is never captured.
  Sampler(Calls& calls, Work& work, CacheState cache, Timing timing,
          std::vector<Prefetch> prefetches);
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;

  // Throws std::invalid_argument for counts that make no sense, among them inner > 1 for cold
  // samples on events; PrimitiveFailure for a gate that keeps timing out or an elapsed time that
  // is none; and what the calls and the work throw.
  SampleResult sample(const SampleRequest& request);

  // Slow executions are repeated fewer times than requested.
  LaunchTimes launch_times(int repetitions);

  // Whether the host's time to enqueue an execution is hidden between events.
  bool is_gated();

 private:
  // Executions of one round: how many, and how they are launched.
  struct Round {
    std::size_t executions;
    Timing timing;
    bool cold;
    bool rotate;
  };
  struct Reading {
    double seconds = 0;          // summed over executions
    double enqueue_seconds = 0;  // of the host, likewise
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
  std::size_t launches_ = 0;                        // of an execution; 0 while none has run
  std::size_t most_gated_ = 1, most_in_graph_ = 1;  // executions
  std::size_t next_ = 0;
};

}  // namespace pydlbench::cuda
