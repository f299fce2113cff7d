// The kernel that prefetches and flushes, on the CPU.
#include "cuda/sampling/read.cuh"

extern "C" void read_bytes(const void* data, std::size_t bytes, int multiprocessors,
                           std::uint32_t* sum) {
  pydlbench::cuda::read_all(data, bytes, multiprocessors, sum, nullptr);
}
