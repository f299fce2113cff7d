// The tensors of one layer, in every layout that its candidates need.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <vector>

#include "cpu/buffer.hpp"
#include "cpu/candidate.hpp"

namespace pydlbench::cpu {

// A dense float32 array of the caller's; `owner` keeps it alive.
struct HostTensor {
  const float* data;
  std::size_t elements;
  std::shared_ptr<void> owner;
};

// A tensor in a candidate's layout, with the memory behind it.
struct Tensor {
  std::shared_ptr<Buffer> buffer;
  dnnl::memory memory;
};

// Converts the caller's inputs into a layout once and shares the result among candidates, so that
// trying ten of them costs neither ten copies nor ten rounds of page faults.
class Arena {
 public:
  // `inputs` by role, dense: src and dst as (n, c, h, w) or (g, m, k), weights as ((g,) o, i, h, w)
  // or (g, k, n).
  explicit Arena(std::map<std::string, HostTensor> inputs);

  // The caller's input of this role in the argument's layout and data type.
  Tensor input(const Argument& argument);
  // Memory for an output in this layout. Poisoned when it is new; shared between candidates.
  Tensor output(const Argument& argument);
  // Memory without a role (scratchpad, workspace); never shared.
  static Tensor scratch(const dnnl::memory::desc& desc);

  // Lets go of everything that no kernel holds.
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
