// The kernel's interference counters: waiting and stolen times.
#pragma once

#include <map>
#include <vector>

namespace pydlbench::cpu {

// Seconds that each thread of this process has waited on a run queue so far (Linux schedstat), by
// thread id; empty if the system does not report them.
std::map<long, double> run_queue_delays();

// The longest wait of a thread since `before`: one waiting thread delays all.
double longest_delay_since(const std::map<long, double>& before);

// Seconds stolen from these CPUs by the hypervisor (Linux /proc/stat); 0 if the system does not
// report them. An empty list means all CPUs.
double stolen_time(const std::vector<int>& cpus);

// Monotonic clock, seconds.
double now();

}  // namespace pydlbench::cpu
