// One way to compute a problem: an implementation, of oneDNN or our own, together with its layouts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <string>
#include <vector>

namespace pydlbench::cpu {

// Replaces a DNNL_ARG_* for tensors that are not arguments of the primitive.
inline constexpr int kNoArgument = 0;

// A tensor that the primitive or our own code reads or writes.
struct Argument {
  int index;         // DNNL_ARG_*
  std::string role;  // "src", "weights" or "dst"; gradients keep their tensor's name
  dnnl::memory::desc desc;
  // The caller's dense array, in the primitive's dimensions: float32, or int32 for a result of
  // integers.
  dnnl::memory::desc plain;
  bool is_output;
  bool is_updated = false;         // an output that is also read
  int second_index = kNoArgument;  // further index of the same memory
};

// Work of our own loops. `tensors` are in the order of the arguments.
struct OwnWork {
  std::size_t workspace_bytes;
  std::function<void(void* const* tensors, void* workspace)> run;
};

// A primitive descriptor with everything needed to run it.
struct Invocation {
  dnnl::primitive_desc_base primitive;
  std::vector<Argument> arguments;
};

struct Candidate {
  std::string primitive;       // "convolution forward", for messages
  std::string implementation;  // oneDNN's name, such as "brgconv:avx512_core"; ours "own:avx512"
  std::string variant;         // the requested layouts: any, nhwc, nchw, blocked, plain
  std::string layout;          // actual layouts: "src nhwc, weights Ohwi16o, dst nhwc"
  Invocation run;
  // Some backward passes read the workspace of a forward run, and its results with a second index.
  std::optional<Invocation> forward;
  bool is_reference;  // oneDNN's unoptimised fallback
  // Runs after the primitive, or instead of it if `run` has none.
  std::shared_ptr<const OwnWork> own;

  std::int64_t scratchpad_bytes() const;
  std::int64_t workspace_bytes() const;
};

}  // namespace pydlbench::cpu
