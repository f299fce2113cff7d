// An engine of cuDNN with the values of its knobs, which identify an execution plan, and its name.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace pydlbench::cuda::cudnn {

// Knobs by cudnnBackendKnobType_t; missing ones have the engine's defaults.
struct EngineChoice {
  std::int64_t engine;
  std::vector<std::pair<std::int64_t, std::int64_t>> knobs;
};

// The range of an engine's knob, both ends included.
struct KnobRange {
  std::int64_t type, least, greatest, stride;
};

// cudnnBackendKnobType_t, by value.
inline std::string knob_name(std::int64_t type) {
  static const char* const names[] = {
      "split_k",     "swizzle",      "tile",      "use_tex",
      "edge",        "kblock",       "ldga",      "ldgb",
      "chunk_k",     "split_h",      "wino_tile", "multiply",
      "split_k_buf", "tile_k",       "stages",    "reduction_mode",
      "cta_split_k", "split_k_slc",  "idx_mode",  "sliced",
      "split_rs",    "singlebuffer", "ldgc",      "specfilt",
      "kernel",      "workspace",    "tile_cga",  "cga_m",
      "cga_n",       "block_size",   "occupancy", "array_per_thread",
      "c_per_block", "split_cols",   "tile_rows", "tile_cols",
      "load_size",   "cta_count",    "stream_k",  "split_p_slc",
      "tile_m",      "tile_n",       "warp_spec", "swap_ab",
      "input_tma",   "output_tma",
  };
  const auto count = static_cast<std::int64_t>(sizeof(names) / sizeof(names[0]));
  if (type >= 0 && type < count) return names[type];
  return "k" + std::to_string(type);
}

// "engine 70 {tile 12, idx_mode 1}", "engine 0 {default}", "engine 4 (winograd 4x4) {tile 1}".
inline std::string engine_text(const EngineChoice& choice, const std::string& transform) {
  std::string text = "engine " + std::to_string(choice.engine);
  if (!transform.empty()) text += " (" + transform + ")";
  auto knobs = choice.knobs;
  std::sort(knobs.begin(), knobs.end());
  std::string inside;
  for (const auto& [type, value] : knobs) {
    inside += (inside.empty() ? "" : ", ") + knob_name(type) + " " + std::to_string(value);
  }
  return text + " {" + (inside.empty() ? "default" : inside) + "}";
}

// All combinations of knob values, the last knob fastest; empty if there are more than `most`, or
// no knobs.
inline std::vector<EngineChoice> combinations(std::int64_t engine,
                                              const std::vector<KnobRange>& ranges,
                                              std::size_t most) {
  std::vector<EngineChoice> choices;
  if (ranges.empty()) return choices;
  choices.push_back({engine, {}});
  for (const auto& range : ranges) {
    const auto stride = std::max<std::int64_t>(range.stride, 1);
    if (range.greatest < range.least) return {};
    const auto values = static_cast<std::size_t>((range.greatest - range.least) / stride + 1);
    if (values > most || choices.size() * values > most) return {};
    std::vector<EngineChoice> longer;
    for (const auto& choice : choices) {
      for (auto value = range.least; value <= range.greatest; value += stride) {
        longer.push_back(choice);
        longer.back().knobs.emplace_back(range.type, value);
      }
    }
    choices = std::move(longer);
  }
  return choices;
}

}  // namespace pydlbench::cuda::cudnn
