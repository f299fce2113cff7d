// A built plan with its memory, ready to be timed.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "cuda/arena.hpp"
#include "cuda/plan.hpp"
#include "cuda/reference/reference.hpp"
#include "cuda/sampling/real_calls.hpp"
#include "cuda/sampling/sampler.hpp"
#include "cuda/sampling/sustained.hpp"

namespace pydlbench::cuda {

class Kernel {
 public:
  // Builds the plan if necessary, takes its inputs from `arena`, and allocates all other memory. A
  // cold cache needs rotating copies for graphs, with `cold_bytes` together; between events, the
  // sampler flushes the cache instead.
  Kernel(std::shared_ptr<Plan> plan, std::shared_ptr<Arena> arena, CacheState cache, Timing timing,
         std::size_t cold_bytes);
  Kernel(const Kernel&) = delete;  // the sampler has references to it
  Kernel& operator=(const Kernel&) = delete;

  SampleResult sample(const SampleRequest& request);
  LaunchTimes launch_times(int repetitions);
  // Keeps the device busy for about `seconds`, on hot data, unless sets rotate.
  Load run_for(double seconds);

  // The kernels of one execution. Throws PrimitiveFailure or Unsupported if a library cannot be
  // captured.
  std::vector<GraphKernel> kernels();

  // Executes once, without a gate, within a named range (ranges.hpp) for profilers.
  void run_marked(const std::string& name);

  // Fills the outputs with NaN, restores overwritten inputs, and runs once on the first set.
  void run_poisoned();

  const Plan& plan() const { return *plan_; }
  const std::shared_ptr<Plan>& shared_plan() const { return plan_; }
  // Indices of the plan's tensors that are outputs; the main one first.
  const std::vector<std::size_t>& outputs() const { return outputs_; }
  // The result of the last run on the first set, as a dense float32 array of spec.elements().
  void read(std::size_t tensor, float* dense) const;
  Comparison verify(const Reference& reference, Arena& arena) const;

  double build_seconds() const { return build_seconds_; }
  std::size_t rotating_sets() const { return work_.pointers.size(); }

 private:
  struct KernelWork final : Work {
    void enqueue(std::size_t set, CUstream_st* stream) override {
      plan->enqueue(pointers[set], workspace, stream);
    }
    std::size_t sets() const override { return pointers.size(); }

    Plan* plan = nullptr;
    void* workspace = nullptr;
    std::vector<std::vector<void*>> pointers;  // by set
  };

  void take_tensors();
  void restore(std::size_t tensor) const;
  void rotate(CacheState cache, std::size_t sets);
  std::vector<Prefetch> prefetches(CacheState cache) const;

  std::shared_ptr<Plan> plan_;
  std::shared_ptr<Arena> arena_;
  std::shared_ptr<Device> device_;
  double build_seconds_;
  std::vector<std::shared_ptr<const Tensor>>
      inputs_;                     // by index of the plan's tensors; null for those in own_
  std::vector<DeviceMemory> own_;  // the other tensors; empty for inputs
  DeviceMemory workspace_, copies_;
  std::vector<std::size_t> outputs_;
  KernelWork work_;
  std::shared_ptr<RealCalls> calls_;
  std::unique_ptr<Sampler> sampler_;
};

}  // namespace pydlbench::cuda
