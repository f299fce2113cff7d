// What the planners of all layer kinds share, and the names of oneDNN's memory formats.
#pragma once

#include <algorithm>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/problem.hpp"
#include "cpu/candidate.hpp"

namespace pydlbench::cpu {

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

// Fills the fields that follow from the others; `letters` in the order of the arguments.
void finish(Candidate& candidate, const std::vector<std::string>& letters);

// Appends `candidate` unless the same implementation with the same layouts is there already.
void append_new(std::vector<Candidate>& candidates, Candidate candidate);

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
