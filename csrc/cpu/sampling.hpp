// Samples of executions, with the core clock and counters of interference.
#pragma once

#include <functional>
#include <vector>

namespace pydlbench::cpu {

// The raw readings of a chunk of samples.
struct Chunk {
  std::vector<double> seconds;   // per execution, one per sample
  std::vector<double> clock_hz;  // readings of the core clock
  double run_delay_seconds;      // longest run-queue wait of a thread
  double steal_seconds;          // taken by the hypervisor from the CPUs used
  double wall_seconds;
  std::vector<double> bursts;  // FLOP/s of fma_burst() right before and after, if requested
};

// A request: `samples` samples of `inner` executions each, after `untimed` executions;
// `with_bursts` runs fma_burst() before and after.
struct SampleRequest {
  int samples, inner, untimed;
  bool with_bursts;
};

// Takes a chunk. `execute(n)` runs n times and returns when the last one has finished; `before(n)`,
// which may be empty, is called untimed before each sample of n executions. `cpus` are the CPUs of
// the threads, for the counter of stolen time.
Chunk take_chunk(const SampleRequest& request, const std::vector<int>& cpus,
                 const std::function<void(int)>& execute, const std::function<void(int)>& before);

}  // namespace pydlbench::cpu
