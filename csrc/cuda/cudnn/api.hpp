// cuDNN's backend graph API, looked up in the library that libraries/loader.hpp opened.
//
// This is the C interface below the frontend headers. It gives engines, knobs and notes one by one
// and lets a variant pack be built once; the frontend hides the first, rebuilds the second at each
// execution, opens a second CUDA runtime by its bare name, and takes a minute and a half to
// compile.
#pragma once

#include <cudnn.h>

#include <string>

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

}  // namespace pydlbench::cuda::cudnn
