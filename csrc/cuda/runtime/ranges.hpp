// Named ranges of a thread's time, in NVTX's domain pydlbench. Profilers show them, and can
// restrict profiling to them. Without a profiler they cost almost nothing.
#pragma once

#include <string>

namespace pydlbench::cuda {

// Ranges are nested: the last one begun ends first.
void push_range(const std::string& name);
void pop_range();

class Range {
 public:
  explicit Range(const std::string& name) { push_range(name); }
  ~Range() { pop_range(); }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
};

}  // namespace pydlbench::cuda
