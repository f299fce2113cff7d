#include <algorithm>
#include <limits>
#include <vector>

#include "core/error.hpp"
#include "cpu/counters.hpp"
#include "cpu/probes/probes.hpp"

namespace pydlbench::cpu {

#if defined(__x86_64__)
namespace {

constexpr int kUnroll = 16;
constexpr double kLatency = 3;  // cycles of imul r32, r32
constexpr int kRepeats = 5;

// The loop counter uses other units in parallel; 16 products hide it entirely.
void multiply_chain(long loops) {
  unsigned value = 3;
  __asm__ volatile(
      ".p2align 5\n"
      "1:\n"
      ".rept 16\n"
      "imul %[value], %[value]\n"
      ".endr\n"
      "dec %[loops]\n"
      "jnz 1b\n"
      : [loops] "+r"(loops), [value] "+r"(value)
      :
      : "cc");
}

}  // namespace

double core_clock_hz(int iterations) {
  PYDLBENCH_CHECK(iterations >= 1, "clock chain: iterations must be positive");
  const long loops = (std::max(iterations, 1024) + kUnroll - 1) / kUnroll;
  double best = std::numeric_limits<double>::infinity();
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    const double start = now();
    multiply_chain(loops);
    best = std::min(best, now() - start);
  }
  return static_cast<double>(loops) * kUnroll * kLatency / best;
}
#else
double core_clock_hz(int) {
  throw Unsupported("core clock: the dependent-instruction chain is written for x86-64 only");
}
#endif

double launch_seconds() {
#ifdef _OPENMP
  constexpr int kWarmUp = 100;
  constexpr int kBatches = 7;
  constexpr int kRegions = 301;
  double best = std::numeric_limits<double>::infinity();
  for (int batch = 0; batch < kBatches; ++batch) {
    std::vector<double> seconds;
    seconds.reserve(kRegions);
    for (int i = 0; i < kWarmUp + kRegions; ++i) {
      const double start = now();
#pragma omp parallel
      {
        // Prevents the compiler from removing the loop.
        asm volatile("" ::: "memory");
      }
      if (i >= kWarmUp) seconds.push_back(now() - start);
    }
    std::nth_element(seconds.begin(), seconds.begin() + kRegions / 2, seconds.end());
    best = std::min(best, seconds[kRegions / 2]);
  }
  return best;
#else
  throw Unsupported("the cost of starting threads cannot be measured: built without OpenMP");
#endif
}

}  // namespace pydlbench::cpu
