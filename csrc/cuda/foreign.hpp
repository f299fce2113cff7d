// Timing of a framework's work like our own kernels: the same gate, stamps, events and load.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "cuda/runtime/device.hpp"
#include "cuda/runtime/graph_kernels.hpp"
#include "cuda/runtime/handles.hpp"
#include "cuda/sampling/real_calls.hpp"
#include "cuda/sampling/sampler.hpp"
#include "cuda/sampling/sustained.hpp"

namespace pydlbench::cuda {

// A function that enqueues work in a framework's stream, or a graph that was captured there. The
// framework owns the operands. Timed with events; the executions in a graph count individually.
class ForeignKernel {
 public:
  using Enqueue = std::function<void(CUstream_st*)>;

  // Calls `enqueue` for each execution, which has about `launches` launches in the device's stream.
  // With cold caches, each sample is one execution after a flush.
  ForeignKernel(std::shared_ptr<Device> device, Enqueue enqueue, std::size_t launches,
                CacheState cache);

  // A graph of `executions` executions, each on data that the former has left in the caches. It is
  // instantiated here, and not needed afterwards.
  ForeignKernel(std::shared_ptr<Device> device, cudaGraph_t graph, std::size_t executions);

  ForeignKernel(const ForeignKernel&) = delete;  // the sampler has references to it
  ForeignKernel& operator=(const ForeignKernel&) = delete;

  // `inner` counts executions, and is rounded up to whole graphs.
  SampleResult sample(const SampleRequest& request);
  LaunchTimes launch_times(int repetitions);
  Load run_for(double seconds);
  // The kernels of the graph; empty for enqueued work, which is not captured.
  const std::vector<GraphKernel>& kernels() const { return kernels_; }

 private:
  struct ForeignWork final : Work {
    void enqueue(std::size_t, CUstream_st* stream) override { launch(stream); }
    std::size_t sets() const override { return 1; }
    std::size_t known_launches() const override { return launches; }
    Enqueue launch;
    std::size_t launches = 1;
  };

  void make_sampler(CacheState cache);

  std::shared_ptr<Device> device_;
  GraphExec graph_;
  std::size_t executions_ = 1;
  std::vector<GraphKernel> kernels_;
  ForeignWork work_;
  std::shared_ptr<RealCalls> calls_;
  std::unique_ptr<Sampler> sampler_;
};

}  // namespace pydlbench::cuda
