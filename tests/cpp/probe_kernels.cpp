// The probes' kernels, for test_fma.py and test_streams.py.
#include <cstdint>

#include "cuda/probes/kernels.hpp"

using namespace pydlbench::cuda;

extern "C" {

void run_fma(int fp16, unsigned blocks, unsigned threads, const void* seeds, void* results,
             unsigned iterations) {
  launch_fma(fp16 ? FmaKind::fp16 : FmaKind::fp32, blocks, threads, seeds, results, iterations,
             nullptr);
}

double flops_of_fma(int fp16, unsigned blocks, unsigned threads, unsigned iterations) {
  return fma_flops(fp16 ? FmaKind::fp16 : FmaKind::fp32, blocks, threads, iterations);
}

unsigned fma_pairs() { return kFmaPairs; }
unsigned fma_steps() { return kFmaSteps; }
unsigned fma_seeds() { return kFmaSeeds; }

void run_stream(int kind, unsigned in_flight, unsigned blocks, const void* source,
                void* destination, std::uint32_t* sums, std::uint32_t chunks, std::uint32_t items) {
  launch_stream(static_cast<StreamKind>(kind), {in_flight, blocks},
                {source, destination, sums, chunks, items}, nullptr);
}

unsigned long stream_chunk_bytes(unsigned in_flight) { return stream_chunk(in_flight); }
unsigned stream_threads() { return kStreamThreads; }
unsigned block_per_item() { return kBlockPerItem; }

}  // extern "C"
