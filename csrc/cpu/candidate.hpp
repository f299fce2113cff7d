// One way in which oneDNN can compute a problem: an implementation together with its layouts.
#pragma once

#include <cstdint>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/problem.hpp"

namespace pydlbench::cpu {

// A tensor that the primitive reads or writes.
struct Argument {
  int index;         // DNNL_ARG_*
  std::string role;  // "src", "weights" or "dst"; gradients keep their tensor's name
  dnnl::memory::desc desc;
  dnnl::memory::desc plain;  // the caller's dense float32 array, in the primitive's dimensions
  bool is_output;
};

// A primitive descriptor with everything needed to run it.
struct Invocation {
  dnnl::primitive_desc_base primitive;
  std::vector<Argument> arguments;
};

struct Candidate {
  std::string primitive;       // "convolution forward", for messages
  std::string implementation;  // oneDNN's name, such as "brgconv:avx512_core"
  std::string variant;         // which layouts were asked for: any, nhwc, nchw, blocked, plain
  std::string layout;          // which layouts it got: "src nhwc, weights Ohwi16o, dst nhwc"
  Invocation run;
  // Max pooling backward reads the workspace that a forward run has filled.
  std::optional<Invocation> forward;
  bool is_reference;  // oneDNN's unoptimised fallback

  std::int64_t scratchpad_bytes() const;
  std::int64_t workspace_bytes() const;
};

// All implementations for every layout variant, in the library's order of preference, without
// duplicates. Throws Unsupported if there is none, PrimitiveFailure if oneDNN refuses the problem.
std::vector<Candidate> conv2d_candidates(const Conv2dProblem& problem, Pass pass,
                                         Precision precision);
std::vector<Candidate> gemm_candidates(const GemmProblem& problem, Pass pass, Precision precision);
std::vector<Candidate> pool2d_candidates(const Pool2dProblem& problem, Pass pass,
                                         Precision precision);

}  // namespace pydlbench::cpu
