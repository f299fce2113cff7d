// One way to compute a problem on a GPU: a cuDNN execution plan, a cuBLASLt algorithm, or a kernel
// of ours, together with the layouts it wants.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "cuda/tensor.hpp"

// CMake passes the version of this package; tests without CMake's get 0.
#ifndef PYDLBENCH_VERSION
#define PYDLBENCH_VERSION "0"
#endif

struct CUstream_st;  // cudaStream_t, without CUDA's headers

namespace pydlbench::cuda {

// The library that plans of our own kernels name.
constexpr const char* kOwnLibrary = "pydlbench " PYDLBENCH_VERSION;

struct PlanFacts {
  std::string primitive;  // for messages: "convolution forward"
  // The implementation, fully: "engine 38 {stages 4, tile 128x128}", "algo 66 tile 128x256 stages
  // 4".
  std::string algorithm;
  std::string library;  // "cuDNN 9.28.0"
  std::string variant;  // the requested layout: "nchw", "nhwc", "plain"; `--layout` selects it
  std::string layout;   // what it works on: "src nhwc, weights krsc, dst nhwc"
  std::string accumulate = "float32";
  std::optional<bool> tensor_cores;  // as the library's notes say; nothing where they say nothing
  std::vector<std::string> notes;    // numerical and behaviour notes, by the library's names
  bool runtime_compiled = false;
};

class Plan {
 public:
  virtual ~Plan() = default;
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  virtual const PlanFacts& facts() const = 0;
  // Every tensor that enqueue() reads or writes, in the order of its pointers.
  virtual const std::vector<TensorSpec>& tensors() const = 0;
  // Known after build() at the latest.
  virtual std::size_t workspace_bytes() const = 0;

  // Makes it ready to run, code generation and all, unless that was done; returns the seconds that
  // it took then. Throws Unsupported where the library has no such plan after all, PrimitiveFailure
  // otherwise; then it was not done.
  double prepare() {
    using Clock = std::chrono::steady_clock;
    if (!build_seconds_) {
      const auto start = Clock::now();
      build();
      build_seconds_ = std::chrono::duration<double>(Clock::now() - start).count();
    }
    return *build_seconds_;
  }

  // Computes the derived inputs from the inputs; called when the inputs are in place, not timed.
  virtual void derive(const std::vector<void*>& pointers, void* workspace, CUstream_st* stream) {
    (void)pointers, (void)workspace, (void)stream;
  }

  // Starts one execution. Asynchronous, allocates nothing, and may be captured into a CUDA graph.
  virtual void enqueue(const std::vector<void*>& pointers, void* workspace,
                       CUstream_st* stream) = 0;

 protected:
  Plan() = default;
  virtual void build() = 0;

 private:
  std::optional<double> build_seconds_;
};

}  // namespace pydlbench::cuda
