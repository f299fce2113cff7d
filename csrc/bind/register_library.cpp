// What was loaded, for the record kept with every result.
#include <pybind11/pybind11.h>

#include <oneapi/dnnl/dnnl.hpp>
#include <string>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "bind/registers.hpp"
#include "cpu/launch.hpp"

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

void register_library(py::module_& m) {
  m.def("launch_seconds", &cpu::launch_seconds, py::call_guard<py::gil_scoped_release>(),
        "Seconds that an empty parallel region of the library's thread pool takes.");
  m.def("library", &library,
        "Version, run time, instruction set and threads of the oneDNN loaded.");
}

}  // namespace pydlbench
