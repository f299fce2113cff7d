// The native kernels of a whole step, run in order on each other's outputs.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <set>
#include <string>
#include <vector>

#include "cpu/arena.hpp"
#include "cpu/chain/bound.hpp"
#include "cpu/chain/plan.hpp"
#include "cpu/sampling.hpp"

namespace pydlbench::cpu {

class Chain {
 public:
  // Plans (see plan_chain), allocates, creates all primitives and loads `given`, which stays the
  // caller's. `cpus` are those that the threads are pinned to, for the account of stolen time.
  Chain(const std::vector<Link>& links, std::map<std::string, HostTensor> given,
        const std::set<std::string>& kept, Precision precision, Layouts layouts, Choices& choices,
        std::vector<int> cpus);

  // Gives all given tensors their first values again.
  void load();
  // Executes the chain once.
  void run();
  // Times executions; no clock is read within one.
  Chunk sample(const SampleRequest& request);
  // Executes once with a clock read behind each step: seconds by step.
  std::vector<double> step_seconds();

  const std::vector<ChainStep>& steps() const { return plan_.steps; }
  const std::vector<Load>& loads() const { return plan_.loads; }
  const ChainMemory& memory() const { return memory_; }
  // A kept tensor as its dense float32 array.
  Tensor tensor(const std::string& name) const;

 private:
  void* at(std::size_t block) const { return blocks_.at(block); }

  std::map<std::string, HostTensor> given_;
  std::vector<int> cpus_;
  ChainPlan plan_;
  ChainMemory memory_{};
  dnnl::stream stream_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::vector<void*> blocks_;
  std::vector<Bound> bound_;
};

}  // namespace pydlbench::cpu
