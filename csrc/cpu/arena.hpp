// Memory for tensors, and the tensors of one layer in every layout that its candidates need.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <vector>

#include "core/host_tensor.hpp"
#include "cpu/candidate.hpp"

namespace pydlbench::cpu {

// Sets or copies bytes with all threads, consecutive pieces each: a thread touches first the part
// that it will work on, so that it is allocated in its memory node.
void fill_bytes(void* target, int value, std::size_t bytes);
void copy_bytes(void* target, const void* source, std::size_t bytes);

// Memory aligned to 64 bytes; from 256 KiB on to 2 MiB, with huge pages (MADV_HUGEPAGE, unless
// PYDLBENCH_HUGE_PAGES=0). A kernel's time then has no page-table walks, and tensors are physically
// contiguous: with small pages, each run would have other conflicts in a physically indexed cache.
// Throws OutOfMemory, never returns null.
class Buffer {
 public:
  explicit Buffer(std::size_t bytes);

  void* data() const { return data_.get(); }
  std::size_t size() const { return size_; }

  // Fills every byte with 0xff, which is NaN in float32, bfloat16 and float16.
  void poison() { fill_bytes(data(), 0xff, size_); }

 private:
  struct Free {
    void operator()(void* pointer) const;
  };
  std::size_t size_;
  std::unique_ptr<void, Free> data_;
};

// A tensor in a candidate's layout, with its memory.
struct Tensor {
  std::shared_ptr<Buffer> buffer;
  dnnl::memory memory;
};

// Converts the caller's inputs to a layout once and shares the result among candidates, so that ten
// candidates need neither ten copies nor ten times the page faults.
class Arena {
 public:
  // `inputs` by role, dense: src and dst as (n, c, h, w) or (g, m, k), weights as ((g,) o, i, h, w)
  // or (g, k, n).
  explicit Arena(std::map<std::string, HostTensor> inputs);

  // The caller's input of this role in the argument's layout and data type.
  Tensor input(const Argument& argument);
  // Memory for an output in this layout. Filled with NaN when allocated; shared between candidates.
  Tensor output(const Argument& argument);
  // Memory without a role (scratchpad, workspace); never shared.
  static Tensor scratch(const dnnl::memory::desc& desc);

  // Releases all tensors that no kernel uses.
  void clear() { entries_.clear(); }
  std::size_t bytes() const;

 private:
  struct Entry {
    std::string key;
    dnnl::memory::desc desc;
    dnnl::memory::desc plain;
    Tensor tensor;
  };
  Entry* find(const std::string& key, const Argument& argument);

  std::map<std::string, HostTensor> inputs_;
  std::vector<Entry> entries_;
};

}  // namespace pydlbench::cpu
