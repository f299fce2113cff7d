#include "cpu/launch.hpp"

#include <algorithm>
#include <limits>
#include <vector>

#include "core/error.hpp"
#include "cpu/counters.hpp"

namespace pydlbench::cpu {

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
        // Empty to us, not to the compiler.
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
