// A prepared primitive with its memory, ready to be timed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <vector>

#include "cpu/arena.hpp"
#include "cpu/candidate.hpp"
#include "cpu/sampling.hpp"

namespace pydlbench::cpu {

// Tensors that are in the cache when a sample starts.
enum class CacheState { hot, weights_cold, all_cold };

class Kernel {
 public:
  // Creates the primitive (which generates its code), takes its tensors from `arena`, and fills the
  // rotating copies of a cold cache state, which have `cold_bytes` together. `cpus` are the CPUs of
  // the threads, for the counter of stolen time.
  Kernel(Candidate candidate, std::shared_ptr<Arena> arena, CacheState cache,
         std::size_t cold_bytes, std::vector<int> cpus);

  Chunk sample(const SampleRequest& request);

  // Replaces an untimed execution in less time: wakes the threads and, with hot caches, reads the
  // tensors once.
  void touch() const;

  // Fills the outputs with NaN, or with their initial values if they are updated, and runs once on
  // their set; output() returns them.
  void run_poisoned();

  const Candidate& candidate() const { return candidate_; }
  // Indices of the arguments that are outputs, the main one first.
  std::vector<std::size_t> outputs() const;
  // An output in the primitive's layout.
  Tensor output(std::size_t argument) const { return tensors_.at(argument); }
  // An output as a dense float32 array, converted if the layout differs.
  Tensor plain_output(std::size_t argument) const;

  // Seconds to convert each tensor between the dense layout in the same data type and the
  // kernel's layout; the smallest of a few runs. Tensors in the dense layout are left out.
  std::map<std::string, double> reorder_seconds() const;
  double setup_seconds() const { return setup_seconds_; }
  std::size_t rotating_sets() const { return sets_; }

 private:
  // Memory of one execution: arguments, scratchpad and workspace.
  struct Set {
    std::vector<dnnl::memory> tensors;
    std::map<int, dnnl::memory> others;
  };

  void take_tensors();
  void restore(std::size_t argument);
  void add_set(const Set& set);
  void rotate(const Set& base, CacheState cache, std::size_t cold_bytes);
  void fill_workspace(Set& base);
  void execute(std::size_t set);
  // Loads the library's descriptors of the next sets into the cache, but not their data: a network
  // has just created the descriptors when it runs a layer with cold caches.
  void warm_records(int executions) const;

  Candidate candidate_;
  std::shared_ptr<Arena> arena_;
  std::vector<int> cpus_;
  dnnl::primitive primitive_;
  dnnl::stream stream_;
  std::vector<Tensor> tensors_;                  // of the first set, in the arguments' order
  std::vector<Tensor> scratch_;                  // scratchpad and workspace
  std::vector<std::shared_ptr<Buffer>> copies_;  // memory of the rotating sets
  std::vector<dnnl::memory> held_;               // memory of the arguments
  std::vector<dnnl_exec_arg_t> arguments_;       // arguments of all sets, one after another
  std::vector<void*> pointers_;                  // the same for our own loops
  std::unique_ptr<Buffer> own_workspace_;
  std::size_t sets_ = 0;
  std::size_t next_ = 0;  // set of the next execution
  double setup_seconds_ = 0.0;
};

}  // namespace pydlbench::cpu
