// What a kernel file includes: CUDA's own language under nvcc, or its emulation on the CPU.
//
// A kernel that is written against this header compiles twice: by nvcc for the GPU, and by any
// C++17 compiler for tests without one (simt/host.hpp). Its launcher is part of it, so that the
// grid and the indexing are tested together.
#pragma once

#ifdef __CUDACC__
#include <cuda_runtime.h>

#include <cstddef>

#include "cuda/runtime/check.hpp"

namespace pydlbench::cuda {

// Starts a kernel and reports a refused launch at once; what fails later is sticky.
template <typename... Parameters, typename... Arguments>
inline void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared_bytes,
                   cudaStream_t stream, Arguments&&... arguments) {
  kernel<<<grid, block, shared_bytes, stream>>>(static_cast<Parameters>(arguments)...);
  PYDLBENCH_CUDA_CHECK(cudaGetLastError());
}

}  // namespace pydlbench::cuda

#else
#include "cuda/simt/host.hpp"
#endif
