// Owners of the CUDA runtime's handles; destructors do not throw.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <utility>

#include "cuda/runtime/check.hpp"

namespace pydlbench::cuda {

// Owner of a handle, which may be null. `Destroy` is called on all others.
template <typename Handle, auto Destroy>
class Owned {
 public:
  Owned() = default;
  explicit Owned(Handle handle) : handle_(handle) {}
  ~Owned() { reset(); }
  Owned(Owned&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Owned& operator=(Owned&& other) noexcept {
    if (this != &other) {
      reset();
      handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
  }

  Handle get() const { return handle_; }
  explicit operator bool() const { return handle_ != nullptr; }
  void reset() noexcept {
    // Errors are ignored here; the next checked call reports a sticky one again.
    if (handle_ != nullptr) static_cast<void>(Destroy(std::exchange(handle_, nullptr)));
  }

 protected:
  Handle handle_ = nullptr;
};

// A stream without synchronisation with the legacy default stream.
class Stream : public Owned<cudaStream_t, &cudaStreamDestroy> {
 public:
  static Stream create() {
    Stream stream;
    PYDLBENCH_CUDA_CHECK(cudaStreamCreateWithFlags(&stream.handle_, cudaStreamNonBlocking));
    return stream;
  }
};

// An event with timing.
class Event : public Owned<cudaEvent_t, &cudaEventDestroy> {
 public:
  static Event create() {
    Event event;
    PYDLBENCH_CUDA_CHECK(cudaEventCreate(&event.handle_));
    return event;
  }
};

using Graph = Owned<cudaGraph_t, &cudaGraphDestroy>;
using GraphExec = Owned<cudaGraphExec_t, &cudaGraphExecDestroy>;

// Page-locked host memory, zeroed, that kernels can read and write through `device_data()`.
class PinnedMemory : public Owned<void*, &cudaFreeHost> {
 public:
  static PinnedMemory create(std::size_t bytes);

  void* data() const { return handle_; }
  void* device_data() const { return device_; }
  std::size_t bytes() const { return bytes_; }

 private:
  void* device_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace pydlbench::cuda
