#include <algorithm>
#include <cmath>
#include <memory>

#include "core/error.hpp"
#include "cuda/sampling/guards.hpp"
#include "cuda/sampling/sustained.hpp"

namespace pydlbench::cuda {

namespace {

// Duration of a batch. After a wait by the host, the device idles for some 10 us, one part in two
// thousand.
constexpr double kBatchSeconds = 20e-3;
// Executions of one graph, and launches of it in one batch.
constexpr double kMaxInGraph = 1024, kMaxLaunches = 64;

double seconds_of_one(Calls& calls, Work& work, std::size_t set) {
  Draining stream(calls);
  const double start = calls.host_seconds();
  work.enqueue(set, calls.stream());
  stream.wait();
  return std::max(calls.host_seconds() - start, 1e-9);
}

std::unique_ptr<Calls::Executable> graph_of(Calls& calls, Work& work, std::size_t executions) {
  std::unique_ptr<Calls::Captured> captured;
  {
    Capture capture(calls);
    capture.begin();
    for (std::size_t i = 0; i < executions; ++i) work.enqueue(i % work.sets(), calls.stream());
    captured = capture.end();
  }
  auto executable = calls.instantiate(*captured);
  Draining stream(calls);
  calls.upload(*executable);
  stream.wait();
  return executable;
}

}  // namespace

Load run_for(Calls& calls, Work& work, double seconds) {
  PYDLBENCH_CHECK(std::isfinite(seconds) && seconds > 0, "seconds must be positive");
  const auto sets = work.sets();
  seconds_of_one(calls, work, 0);  // the first one loads the kernel
  const double once = seconds_of_one(calls, work, 1 % sets);
  const double wanted = std::clamp(std::ceil(kBatchSeconds / once), 1.0, kMaxInGraph);
  const auto turns = (static_cast<std::size_t>(wanted) + sets - 1) / sets;
  // Work that cannot be captured is launched by single executions, like graphs of one.
  const bool captured = work.known_launches() == 0;
  const auto in_graph = captured ? turns * sets : 1;
  const auto graph = captured ? graph_of(calls, work, in_graph) : nullptr;

  Load load{0, 0.0};
  double launches = 1;
  const double start = calls.host_seconds();
  do {
    Draining stream(calls);
    for (std::size_t i = 0; i < static_cast<std::size_t>(launches); ++i) {
      if (captured) {
        calls.launch(*graph);
      } else {
        work.enqueue(i % sets, calls.stream());
      }
    }
    stream.wait();
    load.executions += in_graph * static_cast<std::size_t>(launches);
    load.seconds = calls.host_seconds() - start;
    // The first estimate includes the latency of a launch; later ones are better.
    const double each = load.seconds / static_cast<double>(load.executions / in_graph);
    launches = std::clamp(std::floor(std::min(kBatchSeconds, seconds - load.seconds) / each), 1.0,
                          kMaxLaunches);
  } while (load.seconds < seconds);
  return load;
}

}  // namespace pydlbench::cuda
