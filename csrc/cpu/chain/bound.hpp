// A candidate together with the memory of its tensors: what a chain runs one after the other.
#pragma once

#include <cstddef>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <vector>

#include "cpu/candidate.hpp"

namespace pydlbench::cpu {

class Bound {
 public:
  // Creates the primitive. `tensors` are in the order of the candidate's arguments; `workspace` is
  // what max pooling leaves for its backward pass, `scratch` of at least the candidate's
  // scratchpad_bytes(). Memory is not owned and must outlive this.
  Bound(Candidate candidate, const std::vector<void*>& tensors, void* workspace, void* scratch);
  // A conversion from one layout to another.
  Bound(const dnnl::memory::desc& from, void* source, const dnnl::memory::desc& to, void* target,
        void* scratch);

  void run(const dnnl::stream& stream);

  static std::size_t reorder_scratch_bytes(const dnnl::memory::desc& from,
                                           const dnnl::memory::desc& to);

 private:
  void add(int index, const dnnl::memory::desc& desc, void* data);

  std::string name_;
  dnnl::primitive primitive_;
  std::shared_ptr<const OwnWork> own_;
  std::vector<dnnl::memory> held_;
  std::vector<dnnl_exec_arg_t> arguments_;
  std::vector<void*> pointers_;
  void* scratch_;
};

// Whether two formats put every element at the same place; strides of dimensions of size one do not
// matter.
bool same_layout(const dnnl::memory::desc& left, const dnnl::memory::desc& right);

// The dense order of `plain` with elements of `type`.
dnnl::memory::desc retyped(const dnnl::memory::desc& plain, dnnl::memory::data_type type);

}  // namespace pydlbench::cpu
