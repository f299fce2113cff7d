// Named ranges of this thread's time, in NVTX's domain pydlbench: a profiler shows them, and
// selects by them what it looks into. Without a profiler they cost next to nothing.
#pragma once

#include <string>

namespace pydlbench::cuda {

// Ranges end in the order that is the reverse of their beginning.
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
