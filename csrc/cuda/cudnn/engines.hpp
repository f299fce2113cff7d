// The engine configurations that cuDNN has for an operation graph.
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
  std::size_t workspace_bytes = 0;  // as far as it is known before the plan is built
  std::shared_ptr<const Descriptor> configuration;
};

// Whether an engine is not wanted, judged by its numerical notes before it is configured at all.
using Objection = std::function<bool(const Notes& numerical)>;

// In cuDNN's order: heuristics A, B and the fallback list; then, where `sweep` is set, the engines
// that these leave out, with default knobs, and all knobs of those engines that have few: on Hopper
// the heuristics answer a float32 convolution with little but TF32. No configuration twice, none of
// an engine that is `unwanted`.
std::vector<Engine> engines(const OperationGraph& graph, const Target& target,
                            const Objection& unwanted, bool sweep);

// Makes a plan of a configuration. Throws as check() does.
Descriptor execution_plan(const Descriptor& configuration, const Target& target);

}  // namespace pydlbench::cuda::cudnn
