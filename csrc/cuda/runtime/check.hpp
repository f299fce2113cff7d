// CUDA errors as exceptions. A sticky error makes the context unusable, so the process has to end.
#pragma once

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

#include "core/error.hpp"

namespace pydlbench::cuda {

// The device or its context is lost; the worker process must end.
class DeviceLost : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Whether all later calls in this process will fail.
bool is_sticky(cudaError_t code);

// Throws OutOfMemory, Unsupported (no driver, no device), DeviceLost or PrimitiveFailure.
[[noreturn]] void throw_cuda_error(cudaError_t code, const char* call, const char* file, int line);

}  // namespace pydlbench::cuda

#define PYDLBENCH_CUDA_CHECK(call)                                                    \
  do {                                                                                \
    const cudaError_t pydlbench_code = (call);                                        \
    if (pydlbench_code != cudaSuccess) {                                              \
      ::pydlbench::cuda::throw_cuda_error(pydlbench_code, #call, __FILE__, __LINE__); \
    }                                                                                 \
  } while (false)
