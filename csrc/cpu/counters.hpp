// What the kernel says about disturbance: who was taken off the CPU, and for how long.
#pragma once

#include <vector>

namespace pydlbench::cpu {

// Involuntary context switches of all threads of this process so far.
long involuntary_switches();

// Seconds that the threads of this process have waited on a run queue (Linux schedstat); 0 where
// the system does not tell.
double run_queue_delay();

// Seconds stolen from these CPUs by the hypervisor (Linux /proc/stat); 0 where the system does not
// tell. An empty list means all CPUs.
double stolen_time(const std::vector<int>& cpus);

// Monotonic clock, seconds.
double now();

}  // namespace pydlbench::cpu
