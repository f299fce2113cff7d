// Binds the GPU probes: FMA peak, bandwidth, launch cost.
#include <pybind11/pybind11.h>

#include <string>

#include "bind/cuda_registers.hpp"
#include "cuda/probes/bandwidth.hpp"
#include "cuda/probes/fma_peak.hpp"
#include "cuda/probes/launch.hpp"

namespace py = pybind11;

namespace pydlbench {
namespace {

py::dict as_dict(const cuda::ProbeResult& found) {
  py::dict result;
  result["per_second"] = found.per_second;
  result["median_per_second"] = found.median_per_second;
  result["clock_hz"] = found.clock_hz;
  result["median_clock_hz"] = found.median_clock_hz;
  result["seconds"] = found.seconds;
  result["rounds"] = found.rounds;
  result["kernel"] = found.kernel;
  return result;
}

// Runs `probe` without the GIL: another Python thread reads clocks and power meanwhile.
template <typename Probe>
auto released(const Probe& probe) {
  const py::gil_scoped_release release;
  return probe();
}

}  // namespace

void register_cuda_probes(py::module_& m) {
  using py::arg;
  m.def(
      "fma_peak",
      [](const cuda::Device& device, const std::string& precision, double seconds) {
        return as_dict(released([&] { return cuda::fma_peak(device, precision, seconds); }));
      },
      arg("device"), arg("precision"), arg("seconds") = 0.1,
      "Highest FLOP/s of the CUDA cores: fp32, or fp16 in pairs with float16 accumulation.");
  m.def(
      "bandwidth",
      [](const cuda::Device& device, const std::string& kind, std::size_t bytes, double seconds) {
        return as_dict(released([&] { return cuda::bandwidth(device, kind, bytes, seconds); }));
      },
      arg("device"), arg("kind"), arg("bytes"), arg("seconds") = 0.1,
      "B/s of read, write or copy over a working set of `bytes`.");
  m.def(
      "launch_seconds",
      [](const cuda::Device& device) {
        const auto found = released([&] { return cuda::launch_seconds(device); });
        py::dict result;
        result["empty_kernel_s"] = found.event_s;
        result["host_s"] = found.host_s;
        result["graph_node_s"] = found.graph_s;
        return result;
      },
      arg("device"), "Seconds per empty kernel: back to back, of the host, as a graph's node.");
}

}  // namespace pydlbench
