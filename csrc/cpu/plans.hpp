// The kinds of layers on CPUs, and functions that their planners share.
#pragma once

#include <algorithm>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/fields.hpp"
#include "core/problem.hpp"
#include "cpu/candidate.hpp"

namespace pydlbench::cpu {

// One kind of layer for any number of sides ("conv" of "conv2d"). The file of its planner defines a
// static object of this class, which registers the kind.
class Kind {
 public:
  // Returns all implementations for every layout variant, in the library's order of preference,
  // without duplicates. Throws Unsupported if there is none, PrimitiveFailure if oneDNN refuses the
  // problem, std::invalid_argument if a field is missing or unknown. Lists our own loops only for
  // the widest instruction set, unless `thorough`, which is for tests.
  using Planner = std::vector<Candidate> (*)(const Fields& fields, Pass pass, Precision precision,
                                             bool thorough);

  Kind(const char* op, Planner planner);
};

// Calls the planner of the fields' op. Throws Unsupported if there is no such kind.
std::vector<Candidate> find_candidates(const Fields& fields, Pass pass, Precision precision,
                                       bool thorough);

// Returns the layout of `desc` as one of oneDNN's tags: one letter per dimension from `letters`
// ("nchw", "goihw", ...), outermost first, blocked dimensions in upper case, followed by the inner
// blocks: "nhwc", "nChw16c". A format without strides (packed or Winograd weights) is "opaque".
std::string format_name(const dnnl::memory::desc& desc, const std::string& letters);

inline dnnl::memory::data_type data_type(Precision precision) {
  switch (precision) {
    case Precision::fp32:
      return dnnl::memory::data_type::f32;
    case Precision::bf16:
      return dnnl::memory::data_type::bf16;
    case Precision::fp16:
      return dnnl::memory::data_type::f16;
    case Precision::int8:
      throw Unsupported("there is no such layer in int8");
  }
  throw Unsupported("unknown precision");
}

inline dnnl::prop_kind forward_kind(Pass pass) {
  return pass == Pass::forward_training ? dnnl::prop_kind::forward_training
                                        : dnnl::prop_kind::forward_inference;
}

// The user allocates scratchpads, so that their size is known and the allocation is not timed.
inline dnnl::primitive_attr user_scratchpad() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

// The one engine of this process.
dnnl::engine& cpu_engine();

std::string describe(const dnnl::error& error);

// Fills the derived fields of `candidate`, and appends it unless the same implementation with the
// same layouts is in the list. `letters` are the names of each argument's dimensions; further
// arguments, of fused operations, are not in the name of the layout.
void append_new(std::vector<Candidate>& candidates, Candidate candidate,
                const std::vector<std::string>& letters);

// The arguments of each pass of a layer with weights. `plain` are the caller's src, weights and
// dst.
struct PlainTensors {
  dnnl::memory::desc src, weights, dst;
};

template <typename Descriptor>
std::vector<Argument> forward_arguments(const Descriptor& d, const PlainTensors& plain) {
  return {{DNNL_ARG_SRC, "src", d.src_desc(), plain.src, false},
          {DNNL_ARG_WEIGHTS, "weights", d.weights_desc(), plain.weights, false},
          {DNNL_ARG_DST, "dst", d.dst_desc(), plain.dst, true}};
}

template <typename Descriptor>
std::vector<Argument> backward_data_arguments(const Descriptor& d, const PlainTensors& plain) {
  return {{DNNL_ARG_DIFF_SRC, "src", d.diff_src_desc(), plain.src, true},
          {DNNL_ARG_WEIGHTS, "weights", d.weights_desc(), plain.weights, false},
          {DNNL_ARG_DIFF_DST, "dst", d.diff_dst_desc(), plain.dst, false}};
}

template <typename Descriptor>
std::vector<Argument> backward_weights_arguments(const Descriptor& d, const PlainTensors& plain) {
  return {{DNNL_ARG_SRC, "src", d.src_desc(), plain.src, false},
          {DNNL_ARG_DIFF_WEIGHTS, "weights", d.diff_weights_desc(), plain.weights, true},
          {DNNL_ARG_DIFF_DST, "dst", d.diff_dst_desc(), plain.dst, false}};
}

// Calls `make` with a copy of each implementation of `descriptor`.
template <typename Descriptor, typename Make>
void for_each_implementation(Descriptor descriptor, Make&& make) {
  if (!descriptor) return;  // not implemented in this layout
  do {
    make(Descriptor(descriptor.get()));  // clones: next_impl() advances the handle in place
  } while (descriptor.next_impl());
}

// Runs `plan` and converts oneDNN's exceptions to ours, with the primitive and the reason.
template <typename Plan>
std::vector<Candidate> planned(const std::string& primitive, Plan&& plan) {
  std::vector<Candidate> candidates;
  try {
    plan(candidates);
  } catch (const dnnl::error& error) {
    if (error.status == dnnl_unimplemented)
      throw Unsupported("oneDNN " + primitive + ": " + describe(error));
    throw PrimitiveFailure("oneDNN " + primitive, describe(error));
  }
  if (candidates.empty()) {
    throw Unsupported("oneDNN " + primitive +
                      ": no implementation on this CPU for this precision and shape");
  }
  return candidates;
}

}  // namespace pydlbench::cpu
