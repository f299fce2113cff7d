#include "fma_peak.hpp"

#include "fma_kernels.hpp"

namespace pydlbench::cpu {

ProbeResult fma_peak(const std::string& precision, const std::vector<int>& cpus, double seconds) {
  constexpr long kLoops = 1000;  // some 10 us, the unit that run_rounds scales
  const FmaKernel kernel = choose_fma_kernel(precision);
  const double flops = kernel.flops_per_loop * kLoops * static_cast<double>(cpus.size());
  ProbeResult found = run_rounds(
      cpus, seconds, flops, [](int) {}, [&kernel](int, long scale) { kernel.run(kLoops * scale); });
  found.kernel = kernel.name;
  return found;
}

}  // namespace pydlbench::cpu
