// One way to compute a problem on a GPU: a cuDNN execution plan, a cuBLASLt algorithm, or our own
// kernel, with its layouts.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "cuda/tensor.hpp"

// CMake passes the version of this package; tests use 0.
#ifndef PYDLBENCH_VERSION
#define PYDLBENCH_VERSION "0"
#endif

struct CUstream_st;  // cudaStream_t, without CUDA's headers

namespace pydlbench::cuda {

// The library name of our own kernels.
constexpr const char* kOwnLibrary = "pydlbench " PYDLBENCH_VERSION;

struct PlanFacts {
  std::string primitive;  // for messages: "convolution forward"
  // Full name: "engine 38 {stages 4, tile 128x128}", "algo 66 tile 128x256 stages 4".
  std::string algorithm;
  std::string library;  // "cuDNN 9.28.0"
  std::string variant;  // the requested layout: "nchw", "nhwc", "plain"; `--layout` selects it
  std::string layout;   // layouts of all tensors: "src nhwc, weights krsc, dst nhwc"
  std::string accumulate = "float32";
  std::optional<bool> tensor_cores;  // according to the library's notes; nothing if unknown
  std::vector<std::string> notes;    // the library's names of numerical and behaviour notes
  bool runtime_compiled = false;
};

class Plan {
 public:
  virtual ~Plan() = default;
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  virtual const PlanFacts& facts() const = 0;
  // All tensors that enqueue() reads or writes, in the order of its pointers.
  virtual const std::vector<TensorSpec>& tensors() const = 0;
  // Known after build() at the latest.
  virtual std::size_t workspace_bytes() const = 0;

  // Makes the plan ready to run, including code generation, at the first call; returns the seconds
  // of that call. Throws Unsupported if the library does not support the plan after all, else
  // PrimitiveFailure; a later call then tries again.
  double prepare() {
    using Clock = std::chrono::steady_clock;
    if (!build_seconds_) {
      const auto start = Clock::now();
      build();
      build_seconds_ = std::chrono::duration<double>(Clock::now() - start).count();
    }
    return *build_seconds_;
  }

  // Computes the derived inputs from the inputs; not timed.
  virtual void derive(const std::vector<void*>& pointers, void* workspace, CUstream_st* stream) {
    (void)pointers, (void)workspace, (void)stream;
  }

  // Starts one execution: asynchronous, without allocations, suitable for capture into a graph.
  virtual void enqueue(const std::vector<void*>& pointers, void* workspace,
                       CUstream_st* stream) = 0;

 protected:
  Plan() = default;
  virtual void build() = 0;

 private:
  std::optional<double> build_seconds_;
};

}  // namespace pydlbench::cuda
