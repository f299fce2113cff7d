// cuDNN's backend graph API, looked up in the library that cuda/libraries.hpp opened, and the
// handle of each GPU.
//
// This is the C interface below the frontend headers. It gives engines, knobs and notes one by one
// and lets a variant pack be built once; the frontend hides the first, rebuilds the second at each
// execution, opens a second CUDA runtime by its bare name, and takes a minute and a half to
// compile.
#pragma once

#include <cudnn.h>

#include <memory>
#include <string>

#include "cuda/runtime/device.hpp"
#include "cuda/tensor.hpp"

namespace pydlbench::cuda::cudnn {

struct Api {
  decltype(&cudnnCreate) create;
  decltype(&cudnnDestroy) destroy;
  decltype(&cudnnSetStream) set_stream;
  decltype(&cudnnGetErrorString) error_string;
  decltype(&cudnnGetLastErrorString) last_error_string;
  decltype(&cudnnBackendCreateDescriptor) create_descriptor;
  decltype(&cudnnBackendDestroyDescriptor) destroy_descriptor;
  decltype(&cudnnBackendSetAttribute) set_attribute;
  decltype(&cudnnBackendGetAttribute) get_attribute;
  decltype(&cudnnBackendFinalize) finalize;
  decltype(&cudnnBackendExecute) execute;
};

// Throws Unsupported where cuDNN is not loaded.
const Api& api();

// Throws Unsupported (cuDNN has no such thing, or lacks a library that it needs), OutOfMemory,
// DeviceLost or PrimitiveFailure, with cuDNN's own reason.
void check(cudnnStatus_t status, const std::string& what);

// Throws Unsupported for formats that none of our plans has cuDNN compute in.
cudnnDataType_t type_of(DataType type);

// The cuDNN handle of a GPU: one per process and GPU, because making one takes a good part of a
// second.
class Handle {
 public:
  // Of the GPU that is current in this thread.
  Handle();
  ~Handle();
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  cudnnHandle_t get() const { return handle_; }
  // What is executed from now on goes to this stream.
  void use(CUstream_st* stream);

 private:
  cudnnHandle_t handle_ = nullptr;
  CUstream_st* stream_ = nullptr;
};

// Made when it is first wanted, then kept.
std::shared_ptr<Handle> handle_of(const Device& device);

// Gives up the kept ones, for the end of the process: cuDNN must not be called once CUDA is
// unloaded.
void release_handles();

}  // namespace pydlbench::cuda::cudnn
