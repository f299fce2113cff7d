// cuDNN's engine configurations for an operation graph.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cuda/cudnn/descriptor.hpp"
#include "cuda/cudnn/engine_choice.hpp"
#include "cuda/cudnn/graph.hpp"
#include "cuda/cudnn/mode_filter.hpp"
#include "cuda/cudnn/target.hpp"

namespace pydlbench::cuda::cudnn {

struct Engine {
  EngineChoice choice;
  Notes numerical, behavior;
  std::size_t workspace_bytes = 0;  // 0 if unknown before the plan is built
  std::shared_ptr<const Descriptor> configuration;
};

// Whether to skip an engine, by its numerical notes, before it is configured.
using Objection = std::function<bool(const Notes& numerical)>;

// In cuDNN's order: heuristics A, B and the fallback list; then, if `sweep` is set, all other
// engines with default knobs, and all knob values of engines with few combinations: on Hopper, the
// heuristics for a float32 convolution contain hardly anything but TF32. Without duplicates and
// engines that are `unwanted`.
std::vector<Engine> engines(const OperationGraph& graph, const Target& target,
                            const Objection& unwanted, bool sweep);

// Makes a plan of a configuration. Throws as check() does.
Descriptor execution_plan(const Descriptor& configuration, const Target& target);

}  // namespace pydlbench::cuda::cudnn
