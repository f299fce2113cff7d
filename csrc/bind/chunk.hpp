// Conversion of a chunk of samples to Python.
#pragma once

#include <pybind11/pybind11.h>

#include <utility>

#include "bind/arrays.hpp"
#include "cpu/sampling.hpp"

namespace pydlbench {

// Calls `sample(SampleRequest)` of an object with the GIL released.
template <typename Sampled>
pybind11::dict sample(Sampled& sampled, int samples, int inner, int untimed, bool bursts) {
  cpu::Chunk chunk;
  {
    const pybind11::gil_scoped_release release;
    chunk = sampled.sample({samples, inner, untimed, bursts});
  }
  pybind11::dict result;
  result["seconds"] = array_of(std::move(chunk.seconds));
  result["clock_hz"] = array_of(std::move(chunk.clock_hz));
  result["run_delay_s"] = chunk.run_delay_seconds;
  result["steal_s"] = chunk.steal_seconds;
  result["wall_s"] = chunk.wall_seconds;
  result["bursts"] = array_of(std::move(chunk.bursts));
  return result;
}

}  // namespace pydlbench
