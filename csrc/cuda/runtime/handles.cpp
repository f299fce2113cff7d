#include "cuda/runtime/handles.hpp"

#include <cstring>

namespace pydlbench::cuda {

PinnedMemory PinnedMemory::create(std::size_t bytes) {
  PinnedMemory memory;
  PYDLBENCH_CUDA_CHECK(cudaHostAlloc(&memory.handle_, bytes, cudaHostAllocMapped));
  std::memset(memory.handle_, 0, bytes);
  PYDLBENCH_CUDA_CHECK(cudaHostGetDevicePointer(&memory.device_, memory.handle_, 0));
  memory.bytes_ = bytes;
  return memory;
}

}  // namespace pydlbench::cuda
