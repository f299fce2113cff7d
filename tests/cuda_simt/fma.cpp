#include "cuda/probes/fma_kernels.cuh"

using namespace pydlbench::cuda;

extern "C" {

void run_fma(int fp16, unsigned blocks, unsigned threads, const void* seeds, void* results,
             unsigned iterations) {
  launch_fma_kernel(fp16 ? FmaKind::fp16 : FmaKind::fp32, blocks, threads, seeds, results,
                    iterations, nullptr);
}

double flops(int fp16, unsigned blocks, unsigned threads, unsigned iterations) {
  return fma_flops(fp16 ? FmaKind::fp16 : FmaKind::fp32, blocks, threads, iterations);
}

unsigned pairs() { return kFmaPairs; }
unsigned steps() { return kFmaSteps; }
unsigned seed_count() { return kFmaSeeds; }
}
