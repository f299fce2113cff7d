// A prepared primitive with its memory, ready to be timed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <unordered_map>
#include <vector>

#include "cpu/arena.hpp"
#include "cpu/candidate.hpp"

namespace pydlbench::cpu {

// Which tensors a sample finds in the cache.
enum class CacheState { hot, weights_cold, all_cold };

// The raw record of a chunk of samples; what it means is decided elsewhere.
struct Chunk {
  std::vector<double> seconds;            // per execution, one per sample
  std::vector<std::int64_t> involuntary;  // context switches forced upon us during each sample
  std::vector<double> clock_hz;           // core clock, read beside the samples
  double run_delay_seconds;               // run-queue wait, summed over this process's threads
  double steal_seconds;                   // taken by the hypervisor from the CPUs used
  double wall_seconds;
};

class Kernel {
 public:
  // Creates the primitive (which generates its code), takes its tensors from `arena`, and fills the
  // rotating copies that a cold cache state needs: as many as make `cold_bytes` together. `cpus`
  // are those that the threads are pinned to, for the account of stolen time.
  Kernel(Candidate candidate, std::shared_ptr<Arena> arena, CacheState cache,
         std::size_t cold_bytes, std::vector<int> cpus);

  // Times `samples` samples of `inner` executions each, after `untimed` executions.
  Chunk sample(int samples, int inner, int untimed);

  // Fills the output with NaN and runs once on the tensors that output() shows.
  void run_poisoned();

  const Candidate& candidate() const { return candidate_; }
  // The output as the primitive laid it out.
  Tensor output() const { return output_; }
  // The output as the caller's dense float32 array, converted where the layout differs.
  Tensor plain_output() const;
  bool output_is_plain() const;

  // Seconds to convert each tensor between the dense layout in the same data type and the
  // kernel's layout; the smallest of a few runs. Tensors that need none are left out.
  std::map<std::string, double> reorder_seconds() const;
  double setup_seconds() const { return setup_seconds_; }
  std::size_t rotating_sets() const { return sets_.size(); }

 private:
  using Arguments = std::unordered_map<int, dnnl::memory>;
  void rotate(CacheState cache, std::size_t cold_bytes);
  void fill_workspace(Arguments& base);

  Candidate candidate_;
  std::shared_ptr<Arena> arena_;
  std::vector<int> cpus_;
  dnnl::primitive primitive_;
  dnnl::stream stream_;
  std::vector<Tensor> tensors_;                  // in the order of the candidate's arguments
  std::vector<Tensor> scratch_;                  // scratchpad and workspace
  std::vector<std::shared_ptr<Buffer>> copies_;  // behind the rotating sets
  std::vector<Arguments> sets_;
  std::size_t next_ = 0;
  Tensor output_;
  double setup_seconds_ = 0.0;
};

}  // namespace pydlbench::cpu
