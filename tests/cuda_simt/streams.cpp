#include <cstdint>

#include "cuda/probes/stream_kernels.cuh"

using namespace pydlbench::cuda;

extern "C" {

void stream(int kind, unsigned in_flight, unsigned blocks, const void* source, void* destination,
            std::uint32_t* sums, std::uint32_t chunks, std::uint32_t items) {
  launch_stream_kernel(static_cast<StreamKind>(kind), {in_flight, blocks},
                       {source, destination, sums, chunks, items}, nullptr);
}

unsigned long chunk_bytes(unsigned in_flight) { return stream_chunk(in_flight); }
unsigned threads() { return kStreamThreads; }
}
