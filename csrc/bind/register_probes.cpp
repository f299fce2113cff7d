// Binds the probes: core clock, FMA peak, bandwidth, instruction sets.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bind/registers.hpp"
#include "cpu/probes/bandwidth.hpp"
#include "cpu/probes/clock.hpp"
#include "cpu/probes/fma_peak.hpp"
#include "cpu/probes/isa.hpp"
#include "cpu/probes/team.hpp"

namespace py = pybind11;

namespace pydlbench {

void register_probes(py::module_& m) {
  using namespace cpu;
  using py::arg;
  // The probes hold no Python object, so that another Python thread may run meanwhile.
  using Release = py::call_guard<py::gil_scoped_release>;

  py::class_<ProbeResult>(m, "ProbeResult", "Rates in FLOP/s or B/s and the clock they ran at.")
      .def_readonly("per_second", &ProbeResult::per_second)
      .def_readonly("median_per_second", &ProbeResult::median_per_second)
      .def_readonly("clock_hz", &ProbeResult::clock_hz)
      .def_readonly("median_clock_hz", &ProbeResult::median_clock_hz)
      .def_readonly("seconds", &ProbeResult::seconds)
      .def_readonly("rounds", &ProbeResult::rounds)
      .def_readonly("kernel", &ProbeResult::kernel)
      .def("__repr__", [](const ProbeResult& self) {
        return "ProbeResult(kernel='" + self.kernel +
               "', per_second=" + std::to_string(self.per_second) +
               ", clock_hz=" + std::to_string(self.clock_hz) + ")";
      });

  m.def("clock_hz", &core_clock_hz, arg("iterations") = kClockChain, Release(),
        "Core clock of the calling thread's CPU in Hz, from a chain of dependent multiplications.");
  m.def("fma_peak", &fma_peak, arg("precision"), arg("cpus"), arg("seconds") = 0.1, Release(),
        "Highest FLOP/s of the FMA units of all `cpus` together: fp32, bf16 or fp16.");
  m.def("bandwidth", &bandwidth, arg("kind"), arg("bytes"), arg("cpus"), arg("seconds") = 0.05,
        arg("streaming") = true, Release(),
        "B/s of read, write, copy or triad over a working set of `bytes` on all `cpus`.");
  m.def("isa", &isa_names, "Instruction sets that matter here and that this CPU and system offer.");
}

}  // namespace pydlbench
