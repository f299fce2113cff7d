// cuDNN's functions from the library that cuda/libraries.hpp opened, and the handle of each GPU.
//
// Graphs use the C interface below the frontend headers. It lists engines, knobs and notes one by
// one, and a variant pack can be built once. The frontend hides the former, rebuilds the latter at
// each execution, opens a second CUDA runtime by its bare name, and takes a minute and a half to
// compile.
#pragma once

#include <cudnn.h>

#include <memory>
#include <string>

#include "cuda/runtime/device.hpp"
#include "cuda/tensor.hpp"

namespace pydlbench::cuda::cudnn {

// All functions of cuDNN that this module calls: the member of Api, and the name in the library.
#define PYDLBENCH_CUDNN_FUNCTIONS(FUNCTION)                   \
  FUNCTION(create, cudnnCreate)                               \
  FUNCTION(destroy, cudnnDestroy)                             \
  FUNCTION(set_stream, cudnnSetStream)                        \
  FUNCTION(error_string, cudnnGetErrorString)                 \
  FUNCTION(last_error_string, cudnnGetLastErrorString)        \
  FUNCTION(create_descriptor, cudnnBackendCreateDescriptor)   \
  FUNCTION(destroy_descriptor, cudnnBackendDestroyDescriptor) \
  FUNCTION(set_attribute, cudnnBackendSetAttribute)           \
  FUNCTION(get_attribute, cudnnBackendGetAttribute)           \
  FUNCTION(finalize, cudnnBackendFinalize)                    \
  FUNCTION(execute, cudnnBackendExecute)                      \
  FUNCTION(create_pooling, cudnnCreatePoolingDescriptor)      \
  FUNCTION(destroy_pooling, cudnnDestroyPoolingDescriptor)    \
  FUNCTION(set_pooling, cudnnSetPooling2dDescriptor)          \
  FUNCTION(create_tensor, cudnnCreateTensorDescriptor)        \
  FUNCTION(destroy_tensor, cudnnDestroyTensorDescriptor)      \
  FUNCTION(set_tensor, cudnnSetTensor4dDescriptor)            \
  FUNCTION(pooling_forward, cudnnPoolingForward)              \
  FUNCTION(pooling_backward, cudnnPoolingBackward)

struct Api {
#define PYDLBENCH_DECLARE(member, name) decltype(&name) member;
  PYDLBENCH_CUDNN_FUNCTIONS(PYDLBENCH_DECLARE)
#undef PYDLBENCH_DECLARE
};

// Throws Unsupported if cuDNN is not loaded.
const Api& api();

// Throws Unsupported (not supported by cuDNN, or a library that it needs is missing), OutOfMemory,
// DeviceLost or PrimitiveFailure, with cuDNN's reason.
void check(cudnnStatus_t status, const std::string& what);

// Throws Unsupported for formats that our plans do not use cuDNN for.
cudnnDataType_t type_of(DataType type);

// The cuDNN handle of a GPU: one per process and GPU, because creating one takes a large part of a
// second.
class Handle {
 public:
  // Creates the handle of this thread's current GPU.
  Handle();
  ~Handle();
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  cudnnHandle_t get() const { return handle_; }
  // Sets the stream of further executions.
  void use(CUstream_st* stream);

 private:
  cudnnHandle_t handle_ = nullptr;
  CUstream_st* stream_ = nullptr;
};

// Creates the handle at the first call, and caches it.
std::shared_ptr<Handle> handle_of(const Device& device);

// Releases the cached handles before the end of the process: cuDNN must not be called after CUDA is
// unloaded.
void release_handles();

}  // namespace pydlbench::cuda::cudnn
