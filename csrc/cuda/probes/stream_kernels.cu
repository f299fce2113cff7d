#include "cuda/probes/stream_kernels.cuh"

namespace pydlbench::cuda {

unsigned resident_stream_blocks(StreamKind kind, unsigned in_flight) {
  int blocks = 0;
  PYDLBENCH_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
      &blocks, streams::kernel_of(kind, in_flight), static_cast<int>(kStreamThreads), 0));
  return static_cast<unsigned>(blocks);
}

void launch_stream(StreamKind kind, StreamShape shape, const StreamJob& job, CUstream_st* stream) {
  launch_stream_kernel(kind, shape, job, stream);
}

}  // namespace pydlbench::cuda
