// Bindings of the probes (clock, FMA peak, bandwidth, launch cost, instruction sets) and of the
// version of oneDNN.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <oneapi/dnnl/dnnl.hpp>
#include <string>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "cpu/probes/isa.hpp"
#include "cpu/probes/probes.hpp"

namespace py = pybind11;

namespace pydlbench {

namespace {

std::string isa_name() {
  switch (dnnl::get_effective_cpu_isa()) {
    case dnnl::cpu_isa::isa_default:
      return "default";
    case dnnl::cpu_isa::sse41:
      return "sse41";
    case dnnl::cpu_isa::avx:
      return "avx";
    case dnnl::cpu_isa::avx2:
      return "avx2";
    case dnnl::cpu_isa::avx2_vnni:
      return "avx2_vnni";
    case dnnl::cpu_isa::avx2_vnni_2:
      return "avx2_vnni_2";
    case dnnl::cpu_isa::avx512_core:
      return "avx512_core";
    case dnnl::cpu_isa::avx512_core_vnni:
      return "avx512_core_vnni";
    case dnnl::cpu_isa::avx512_core_bf16:
      return "avx512_core_bf16";
    case dnnl::cpu_isa::avx512_core_fp16:
      return "avx512_core_fp16";
    case dnnl::cpu_isa::avx512_core_amx:
      return "avx512_core_amx";
    case dnnl::cpu_isa::avx512_core_amx_fp16:
      return "avx512_core_amx_fp16";
    default:
      return "newer than this build knows";
  }
}

const char* runtime_name() {
  switch (dnnl::version()->cpu_runtime) {
    case DNNL_RUNTIME_SEQ:
      return "sequential";
    case DNNL_RUNTIME_OMP:
      return "OpenMP";
    case DNNL_RUNTIME_TBB:
      return "TBB";
    case DNNL_RUNTIME_THREADPOOL:
      return "threadpool";
    default:
      return "other";
  }
}

py::dict library() {
  const auto* version = dnnl::version();
  py::dict result;
  result["name"] = "oneDNN";
  result["version"] = std::to_string(version->major) + "." + std::to_string(version->minor) + "." +
                      std::to_string(version->patch);
  result["hash"] = version->hash;
  result["runtime"] = runtime_name();
  result["isa"] = isa_name();
#ifdef _OPENMP
  result["threads"] = omp_get_max_threads();
#else
  result["threads"] = py::none();
#endif
  return result;
}

}  // namespace

void register_cpu_probes(py::module_& m) {
  using namespace cpu;
  using py::arg;
  // The probes use no Python object, so that other Python threads may run.
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
  m.def(
      "fma_burst", &fma_burst, arg("cpus") = std::vector<int>{}, Release(),
      "FLOP/s of the FMA units in a burst of 0.3 ms on all threads, or on new threads on `cpus`.");
  m.def("bandwidth", &bandwidth, arg("kind"), arg("bytes"), arg("cpus"), arg("seconds") = 0.05,
        arg("streaming") = true, Release(),
        "B/s of read, write, copy or triad over a working set of `bytes` on all `cpus`.");
  m.def("isa", &isa_names, "Instruction sets that matter here and that this CPU and system offer.");
  m.def("launch_seconds", &launch_seconds, Release(),
        "Seconds of an empty parallel region of the library's thread pool.");
  m.def("library", &library,
        "Version, run time, instruction set and threads of the loaded oneDNN.");
}

}  // namespace pydlbench
