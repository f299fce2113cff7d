// Binds GPUs: how many, their facts, one of them in use; and what the module was built with.
#include <cuda_runtime_api.h>
#include <pybind11/pybind11.h>

#include <memory>
#include <string>

#include "bind/cuda_registers.hpp"
#include "cuda/runtime/device.hpp"

#ifndef PYDLBENCH_CUDA_ARCHITECTURES
#define PYDLBENCH_CUDA_ARCHITECTURES "unknown"
#endif

namespace py = pybind11;

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

// Starting a driver takes seconds on some machines: other Python threads go on.
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

}  // namespace

void register_cuda_device(py::module_& m) {
  using py::arg;
  m.def("device_count", &cuda::device_count, Release(),
        "Number of GPUs, at least 1; UnsupportedError where there is no driver or no GPU.");
  m.def(
      "device_facts", [](int index) { return facts_dict(read_facts(index)); }, arg("index"),
      "What the CUDA runtime tells about a GPU: bytes, Hz, and 13000 for version 13.0.");
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
           "Wait for all work on the GPU; raises what went wrong in it.")
      .def("__repr__", [](const cuda::Device& self) {
        return "Device(" + std::to_string(self.facts().index) + ", '" + self.facts().name + "')";
      });
}

}  // namespace pydlbench
