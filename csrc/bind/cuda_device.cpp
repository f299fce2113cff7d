// Bindings of GPUs (their number, facts and probes), of the loaded libraries and of the versions
// that this module was built with.
#include <cuda_runtime_api.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <string>

#include "core/error.hpp"
#include "cuda/libraries.hpp"
#include "cuda/probes/probes.hpp"
#include "cuda/runtime/device.hpp"

#ifndef PYDLBENCH_CUDA_ARCHITECTURES
#define PYDLBENCH_CUDA_ARCHITECTURES "unknown"
#endif

namespace py = pybind11;
using py::arg;

namespace pydlbench {

namespace {

using Release = py::call_guard<py::gil_scoped_release>;

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

py::dict facts_dict(const cuda::DeviceFacts& facts) {
  using namespace py::literals;
  return py::dict(
      "index"_a = facts.index, "name"_a = facts.name, "uuid"_a = facts.uuid, "pci"_a = facts.pci,
      "major"_a = facts.major, "minor"_a = facts.minor,
      "capability"_a = std::to_string(facts.major) + "." + std::to_string(facts.minor),
      "multiprocessors"_a = facts.multiprocessors, "memory_bytes"_a = facts.memory_bytes,
      "l2_bytes"_a = facts.l2_bytes, "shared_bytes_per_block"_a = facts.shared_bytes_per_block,
      "clock_hz"_a = facts.clock_hz, "memory_clock_hz"_a = facts.memory_clock_hz,
      "memory_bus_bits"_a = facts.memory_bus_bits,
      "threads_per_multiprocessor"_a = facts.threads_per_multiprocessor, "ecc"_a = facts.ecc,
      "integrated"_a = facts.integrated, "driver_version"_a = facts.driver_version,
      "runtime_version"_a = facts.runtime_version);
}

// Releases the GIL, because starting a driver takes seconds on some machines.
cuda::DeviceFacts read_facts(int index) {
  const py::gil_scoped_release release;
  return cuda::device_facts(index);
}

const char* compiler() {
#if defined(__clang__)
  return "Clang " __clang_version__;
#elif defined(__GNUC__)
  return "GNU " __VERSION__;
#else
  return "unknown";
#endif
}

py::dict built_with() {
  using namespace py::literals;
  return py::dict("cuda"_a = version_text(CUDART_VERSION),
                  "architectures"_a = PYDLBENCH_CUDA_ARCHITECTURES, "compiler"_a = compiler());
}

void add(py::dict& libraries, const char* name, const std::optional<cuda::LoadedLibrary>& library) {
  if (!library) return;
  py::dict facts;
  facts["version"] = library->version;
  facts["path"] = library->path;
  libraries[name] = facts;
}

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

// Runs `probe` without the GIL, so that another Python thread can read clocks and power.
template <typename Probe>
auto released(const Probe& probe) {
  const py::gil_scoped_release release;
  return probe();
}

void register_devices(py::module_& m) {
  m.def("device_count", &cuda::device_count, Release(),
        "Number of GPUs, at least 1; UnsupportedError if there is no driver or no GPU.");
  m.def(
      "device_facts", [](int index) { return facts_dict(read_facts(index)); }, arg("index"),
      "Facts of a GPU from the CUDA runtime: bytes, Hz, and 13000 for version 13.0.");
  m.def("built_with", &built_with, "Toolkit, architectures and host compiler of this module.");

  py::class_<cuda::Device, std::shared_ptr<cuda::Device>>(
      m, "Device", "A GPU in use: its context and its stream.")
      .def(py::init<int>(), arg("index"), Release())
      .def_property_readonly("facts",
                             [](const cuda::Device& self) { return facts_dict(self.facts()); })
      .def_property_readonly(
          "free_bytes",
          py::cpp_function([](const cuda::Device& self) { return self.free_bytes(); }, Release()))
      .def("synchronize", &cuda::Device::synchronize, Release(),
           "Wait for all work on the GPU; raises its errors.")
      .def("__repr__", [](const cuda::Device& self) {
        return "Device(" + std::to_string(self.facts().index) + ", '" + self.facts().name + "')";
      });
}

void register_libraries(py::module_& m) {
  m.def(
      "load_libraries",
      [](const std::optional<std::string>& cudnn, const std::optional<std::string>& cublaslt) {
        std::exception_ptr refused;
        const auto attempt = [&refused](auto load, const std::optional<std::string>& path) {
          try {
            load(path);
          } catch (const Unsupported&) {
            if (!refused) refused = std::current_exception();
          }
        };
        attempt(cuda::load_cudnn, cudnn);
        attempt(cuda::load_cublaslt, cublaslt);
        if (refused) std::rethrow_exception(refused);
      },
      arg("cudnn") = py::none(), arg("cublaslt") = py::none(),
      "Open cuDNN and cuBLASLt: the given files, or what the loader finds. Raises what the first "
      "refused says, when both were tried.");
  m.def(
      "libraries",
      [] {
        py::dict libraries;
        add(libraries, "cudnn", cuda::loaded_cudnn());
        add(libraries, "cublaslt", cuda::loaded_cublaslt());
        return libraries;
      },
      "Version and file of the loaded libraries.");
}

void register_probes(py::module_& m) {
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
        result["single_kernel_s"] = found.single_s;
        result["empty_kernel_s"] = found.event_s;
        result["host_s"] = found.host_s;
        result["graph_node_s"] = found.graph_s;
        return result;
      },
      arg("device"),
      "Seconds per empty kernel: alone, without pauses, of the host, as a graph's node.");
}

}  // namespace

void register_cuda_device(py::module_& m) {
  register_devices(m);
  register_libraries(m);
  register_probes(m);
}

}  // namespace pydlbench
