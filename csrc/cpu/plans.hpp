// The kinds of layers that can be computed here, and what their planners share.
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

// One kind of layer, whatever the number of sides of its images ("conv" of "conv2d"). The file that
// plans it defines one of these outside of any function, which is all that makes the kind known.
class Kind {
 public:
  // Returns all implementations for every layout variant, in the library's order of preference,
  // without duplicates. Throws Unsupported if there is none, PrimitiveFailure if oneDNN refuses the
  // problem, std::invalid_argument where a field is missing or unknown. Of loops of our own it
  // lists those for the widest instruction set, unless `thorough`, which is for tests.
  using Planner = std::vector<Candidate> (*)(const Fields& fields, Pass pass, Precision precision,
                                             bool thorough);

  Kind(const char* op, Planner planner);
};

// Asks the planner of the fields' op. Throws Unsupported where there is no such kind.
std::vector<Candidate> candidates_of(const Fields& fields, Pass pass, Precision precision,
                                     bool thorough);

// Names the layout of `desc` the way oneDNN writes tags, one letter per dimension taken from
// `letters` ("nchw", "goihw", ...), outermost first, blocked dimensions in upper case with their
// inner blocks behind: "nhwc", "nChw16c". A format without strides (packed or Winograd weights) is
// "opaque".
std::string format_name(const dnnl::memory::desc& desc, const std::string& letters);

inline dnnl::memory::data_type data_type(Precision precision) {
  switch (precision) {
    case Precision::fp32:
      return dnnl::memory::data_type::f32;
    case Precision::bf16:
      return dnnl::memory::data_type::bf16;
    case Precision::fp16:
      return dnnl::memory::data_type::f16;
  }
  throw Unsupported("unknown precision");
}

inline dnnl::prop_kind forward_kind(Pass pass) {
  return pass == Pass::forward_training ? dnnl::prop_kind::forward_training
                                        : dnnl::prop_kind::forward_inference;
}

// Scratchpads are ours, so that their size is known and their allocation is outside the timed
// region.
inline dnnl::primitive_attr user_scratchpad() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

// The one engine of this process.
dnnl::engine& cpu_engine();

std::string describe(const dnnl::error& error);

// Fills the fields of `candidate` that follow from the others, then appends it unless the same
// implementation with the same layouts is there already. `letters` name the dimensions of each
// argument, in their order.
void append_new(std::vector<Candidate>& candidates, Candidate candidate,
                const std::vector<std::string>& letters);

// What each pass of a layer with weights reads and writes. `plain` are the caller's src, weights
// and dst.
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

// Walks all implementations behind `descriptor` and calls `make` with a copy of each.
template <typename Descriptor, typename Make>
void for_each_implementation(Descriptor descriptor, Make&& make) {
  if (!descriptor) return;  // not implemented in this layout
  do {
    make(Descriptor(descriptor.get()));  // clones: next_impl() advances the handle in place
  } while (descriptor.next_impl());
}

// Runs `plan` and turns oneDNN's exceptions into ours, which name the primitive and the reason.
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
