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

// Which tensors a sample finds in the cache.
enum class CacheState { hot, weights_cold, all_cold };

class Kernel {
 public:
  // Creates the primitive (which generates its code), takes its tensors from `arena`, and fills the
  // rotating copies that a cold cache state needs: as many as make `cold_bytes` together. `cpus`
  // are those that the threads are pinned to, for the account of stolen time.
  Kernel(Candidate candidate, std::shared_ptr<Arena> arena, CacheState cache,
         std::size_t cold_bytes, std::vector<int> cpus);

  Chunk sample(const SampleRequest& request);

  // Does for a sample that follows what an untimed execution would, in the time that it takes to
  // read the tensors once: wakes the threads and, with hot caches, brings the tensors in.
  void touch() const;

  // Fills the outputs with NaN, or with their first values where they are updated, and runs once on
  // the set that they belong to; output() shows one.
  void run_poisoned();

  const Candidate& candidate() const { return candidate_; }
  // The candidate's arguments that are outputs, the main one first.
  std::vector<std::size_t> outputs() const;
  // An output as the primitive laid it out.
  Tensor output(std::size_t argument) const { return tensors_.at(argument); }
  // An output as the caller's dense float32 array, converted where the layout differs.
  Tensor plain_output(std::size_t argument) const;

  // Seconds to convert each tensor between the dense layout in the same data type and the
  // kernel's layout; the smallest of a few runs. Tensors that need none are left out.
  std::map<std::string, double> reorder_seconds() const;
  double setup_seconds() const { return setup_seconds_; }
  std::size_t rotating_sets() const { return sets_; }

 private:
  // Memory of one execution: of the candidate's arguments, and of what only the primitive knows.
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
  // Brings the library's own records of the sets that come next into the cache, but not their data:
  // a network that runs a layer cold has just made those records.
  void warm_records(int executions) const;

  Candidate candidate_;
  std::shared_ptr<Arena> arena_;
  std::vector<int> cpus_;
  dnnl::primitive primitive_;
  dnnl::stream stream_;
  std::vector<Tensor> tensors_;                  // of the first set, in the arguments' order
  std::vector<Tensor> scratch_;                  // scratchpad and workspace
  std::vector<std::shared_ptr<Buffer>> copies_;  // behind the rotating sets
  std::vector<dnnl::memory> held_;               // behind the arguments
  std::vector<dnnl_exec_arg_t> arguments_;       // of all sets, one after another
  std::vector<void*> pointers_;                  // the same for our own work
  std::unique_ptr<Buffer> own_workspace_;
  std::size_t sets_ = 0;
  std::size_t next_ = 0;  // set of the next execution
  double setup_seconds_ = 0.0;
};

}  // namespace pydlbench::cpu
