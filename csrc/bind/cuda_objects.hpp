// Devices on their way into objects of C++, and samples on their way out of them.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <utility>

#include "bind/arrays.hpp"
#include "cuda/runtime/device.hpp"
#include "cuda/sampling/sampler.hpp"

namespace pydlbench {

// The device, kept alive with the Python object that has it.
inline std::shared_ptr<cuda::Device> shared_device(cuda::Device& device) {
  const auto object = pybind11::cast(device, pybind11::return_value_policy::reference);
  return {kept_alive(object), &device};
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
