// Readable names of oneDNN memory formats.
#pragma once

#include <oneapi/dnnl/dnnl.hpp>
#include <string>

namespace pydlbench::cpu {

// Names the layout of `desc` the way oneDNN writes tags, one letter per dimension taken from
// `letters` ("nchw", "goihw", ...), outermost first, blocked dimensions in upper case with their
// inner blocks behind: "nhwc", "nChw16c". A format without strides (packed or Winograd weights) is
// "opaque".
std::string format_name(const dnnl::memory::desc& desc, const std::string& letters);

}  // namespace pydlbench::cpu
