// What a framework has built, timed as our own kernels are: the same gate, stamps, events and load.
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

// What is enqueued in a framework's stream, or a graph that it has captured there. Operands are the
// framework's and stay alive with it. Timed with events; a graph's own executions count one by one.
class ForeignKernel {
 public:
  using Enqueue = std::function<void(CUstream_st*)>;

  // Calls `enqueue` for each execution, which is about so many launches in the device's stream.
  // With all caches cold each sample is one execution, behind a flush.
  ForeignKernel(std::shared_ptr<Device> device, Enqueue enqueue, std::size_t launches,
                CacheState cache);

  // A graph of so many executions, each on data that the one before it has left in the caches. Its
  // kernels can be asked for; it is instantiated here, and not needed afterwards.
  ForeignKernel(std::shared_ptr<Device> device, cudaGraph_t graph, std::size_t executions);

  ForeignKernel(const ForeignKernel&) = delete;  // the sampler holds references into it
  ForeignKernel& operator=(const ForeignKernel&) = delete;

  // `inner` counts executions; of a graph it is rounded up to whole ones.
  SampleResult sample(const SampleRequest& request);
  LaunchTimes launch_times(int repetitions);
  Load run_for(double seconds);
  // Of one graph; none of what is enqueued, which is not captured.
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
