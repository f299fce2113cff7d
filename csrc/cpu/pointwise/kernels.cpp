#include "cpu/pointwise/kernels.hpp"

#include "cpu/probes/isa.hpp"

namespace pydlbench::cpu::pointwise {

#ifdef PYDLBENCH_X86_LOOPS
namespace avx512 {
const Kernels& kernels(Storage storage);
}
namespace avx2 {
const Kernels& kernels(Storage storage);
}
#endif
namespace generic {
const Kernels& kernels(Storage storage);
}

std::vector<IsaKernels> isa_kernels() {
  std::vector<IsaKernels> found;
#ifdef PYDLBENCH_X86_LOOPS
  if (isa().avx512_vector) found.push_back({"avx512", avx512::kernels});
  if (isa().avx2_fma) found.push_back({"avx2", avx2::kernels});
#endif
  found.push_back({"generic", generic::kernels});
  return found;
}

}  // namespace pydlbench::cpu::pointwise
