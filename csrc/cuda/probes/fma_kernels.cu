#include "cuda/probes/fma_kernels.cuh"

namespace pydlbench::cuda {

void launch_fma(FmaKind kind, unsigned blocks, unsigned threads, const void* seeds, void* results,
                std::uint32_t iterations, CUstream_st* stream) {
  launch_fma_kernel(kind, blocks, threads, seeds, results, iterations, stream);
}

}  // namespace pydlbench::cuda
