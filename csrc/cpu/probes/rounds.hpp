// Threads pinned one per given CPU that start every round of work together.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace pydlbench::cpu {

// Result of a probe. Rates are FLOP/s or B/s over all threads; a round's rate is its work divided
// by the time from the first thread's start to the last one's end.
struct ProbeResult {
  double per_second = 0;         // best round
  double median_per_second = 0;  // median over the rounds
  double clock_hz = 0;           // median over the threads, read right after the best round
  double median_clock_hz = 0;    // median over all rounds and threads
  double seconds = 0;            // sum of the rounds' windows
  int rounds = 0;
  std::string kernel;  // instruction or access pattern
};

// One round's work of one thread; `index` counts the threads, `scale` multiplies the work.
using Work = std::function<void(int index, long scale)>;

// Runs rounds of `work` on all `cpus` at once for about `seconds` and returns rates and clocks.
//
// `prepare(index)` runs first on each pinned thread, so that memory it touches is local to it.
// `work_per_scale` is the work of one call with scale 1 over all threads, in FLOP or bytes. The
// scale is calibrated so that a round lasts about a millisecond: much longer than the barrier, but
// shorter than the scheduler's time slices, so that even a busy machine has undisturbed rounds. The
// first rounds are for warming up.
// Throws std::invalid_argument for no, negative or repeated CPUs, seconds <= 0, or a CPU that this
// process may not use; Unsupported where threads cannot be pinned.
ProbeResult run_rounds(const std::vector<int>& cpus, double seconds, double work_per_scale,
                       const std::function<void(int index)>& prepare, const Work& work);

// Runs `work` once on each of `cpus` at the same time, on temporary threads. Throws as run_rounds
// does.
void run_once(const std::vector<int>& cpus, const std::function<void(int index)>& work);

}  // namespace pydlbench::cpu
