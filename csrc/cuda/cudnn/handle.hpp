// The cuDNN handle of a GPU: one per process and GPU, because making one takes a good part of a
// second.
#pragma once

#include <cudnn.h>

#include <memory>

#include "cuda/runtime/device.hpp"

namespace pydlbench::cuda::cudnn {

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
