// Images of one, two or three sides in oneDNN: dimensions, layouts and their names.
#pragma once

#include <oneapi/dnnl/dnnl.hpp>
#include <string>

#include "core/problem.hpp"

namespace pydlbench::cpu {

// A layout for one, two and three sides.
struct ImageTag {
  dnnl::memory::format_tag tags[kMaxSides];
  constexpr dnnl::memory::format_tag of(int sides) const { return tags[sides - 1]; }
};

namespace image {
using Tag = dnnl::memory::format_tag;
inline constexpr ImageTag any{{Tag::any, Tag::any, Tag::any}};
inline constexpr ImageTag channels_first{{Tag::ncw, Tag::nchw, Tag::ncdhw}};
inline constexpr ImageTag channels_last{{Tag::nwc, Tag::nhwc, Tag::ndhwc}};
inline constexpr ImageTag blocks_of_16{{Tag::nCw16c, Tag::nChw16c, Tag::nCdhw16c}};
inline constexpr ImageTag blocks_of_8{{Tag::nCw8c, Tag::nChw8c, Tag::nCdhw8c}};
}  // namespace image

// A layout with the name that users see, which is its name for two sides.
struct ImageLayout {
  const char* variant;
  ImageTag tag;
};
inline constexpr ImageLayout kImageLayouts[] = {{"nhwc", image::channels_last},
                                                {"nchw", image::channels_first},
                                                {"blocked", image::blocks_of_16},
                                                {"blocked", image::blocks_of_8}};

// Returns the numbers of all sides.
inline dnnl::memory::dims side_sizes(const std::int64_t (&sizes)[kMaxSides], int sides) {
  return {sizes, sizes + sides};
}

inline dnnl::memory::dims image_dims(std::int64_t batch, std::int64_t channels,
                                     const std::int64_t (&sizes)[kMaxSides], int sides) {
  auto dims = side_sizes(sizes, sides);
  dims.insert(dims.begin(), {batch, channels});
  return dims;
}

// oneDNN counts dilations from zero.
inline dnnl::memory::dims dilations(const Windows& windows) {
  auto dims = side_sizes(windows.dilation, windows.sides);
  for (auto& dim : dims) --dim;
  return dims;
}

// Appends the letters of the sides: "nchw", "oidhw".
inline std::string with_sides(const std::string& letters, int sides) {
  return letters + std::string("dhw").substr(static_cast<std::size_t>(kMaxSides - sides));
}

}  // namespace pydlbench::cpu
