// The native kernels of a whole step on a GPU, run in order on each other's outputs: as a stream of
// launches, or captured once into a CUDA graph.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cuda/arena.hpp"
#include "cuda/chain/offers.hpp"
#include "cuda/chain/plan.hpp"
#include "cuda/chain/sequence.hpp"
#include "cuda/runtime/device.hpp"
#include "cuda/sampling/real_calls.hpp"
#include "cuda/sampling/sampler.hpp"

namespace pydlbench::cuda {

class Chain {
 public:
  // Plans (see plan_chain), builds all of its plans, allocates, and loads `given`, which stays the
  // caller's.
  Chain(DeviceOffers& offers, const std::vector<Link>& links,
        const std::map<std::string, HostTensor>& given, const std::set<std::string>& kept,
        Layouts layouts);
  Chain(const Chain&) = delete;  // the samplers hold references into it
  Chain& operator=(const Chain&) = delete;

  // Gives all given tensors their first values again.
  void load();
  // Executes the chain once and waits for its end.
  void run();
  // Times executions: between events, without a gate where the chain has too many launches for one
  // (see kMostGatedLaunches), or as one CUDA graph, likewise (kMostGraphLaunches), which throws
  // PrimitiveFailure or Unsupported where a library refuses to be captured.
  SampleResult sample(const SampleRequest& request, Timing timing);
  // Executes once with an event behind each step: seconds by step. In pieces, each behind a gate.
  // Throws PrimitiveFailure where the gate times out even for a single step.
  std::vector<double> step_seconds();

  // Whether the host's time to start the kernels is hidden in samples between events.
  bool is_gated();
  const std::vector<ChainStep>& steps() const { return plan_.steps; }
  const std::vector<ChainLoad>& loads() const { return plan_.loads; }
  const ChainMemory& memory() const { return memory_; }
  // A kept tensor as its dense float32 array.
  std::vector<float> tensor(const std::string& name) const;

 private:
  void allocate();
  // Appends the seconds of steps first..last-1; false, and none, where their gate timed out.
  bool piece_seconds(std::size_t first, std::size_t last, std::vector<double>& seconds);

  std::shared_ptr<Device> device_;
  Arena given_;
  ChainPlan plan_;
  ChainMemory memory_{};
  std::vector<DeviceMemory> kept_;
  DeviceMemory shared_, workspace_;
  std::vector<void*> blocks_;
  Sequence sequence_;
  std::shared_ptr<RealCalls> calls_;
  std::unique_ptr<Sampler> stream_, graph_;
};

}  // namespace pydlbench::cuda
