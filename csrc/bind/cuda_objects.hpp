// Conversion of arguments and samples of GPU kernels.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <utility>

#include "bind/arrays.hpp"
#include "cuda/runtime/device.hpp"
#include "cuda/sampling/sampler.hpp"

namespace pydlbench {

// Returns the device with shared ownership of its Python object.
inline std::shared_ptr<cuda::Device> shared_device(cuda::Device& device) {
  const auto object = pybind11::cast(device, pybind11::return_value_policy::reference);
  return {keep_alive(object), &device};
}

inline cuda::Timing timing_of(const std::string& name) {
  if (name == "events") return cuda::Timing::events;
  if (name == "cuda-graph") return cuda::Timing::graph;
  throw pybind11::value_error("timing " + name +
                              ": no such procedure; there is: events, cuda-graph");
}

inline pybind11::dict chunk_of(cuda::SampleResult result) {
  pybind11::dict chunk;
  chunk["seconds"] = array_of(std::move(result.seconds));
  chunk["clock_hz"] = array_of(std::move(result.clock_hz));
  chunk["enqueue_s"] = array_of(std::move(result.enqueue_seconds));
  chunk["wall_s"] = result.wall_seconds;
  chunk["gate_timeouts"] = result.gate_timeouts;
  return chunk;
}

}  // namespace pydlbench
