// Bindings of arenas and kernels on a GPU.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bind/arrays.hpp"
#include "bind/cuda_objects.hpp"
#include "core/error.hpp"
#include "cuda/arena.hpp"
#include "cuda/foreign.hpp"
#include "cuda/kernel.hpp"
#include "cuda/runtime/ranges.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace pydlbench {

namespace {

// Elements, key, significand bits, spacing.
using Drawn = std::tuple<std::int64_t, std::uint64_t, std::uint64_t, int, float>;

std::shared_ptr<cuda::Arena> make_arena(cuda::Device& device,
                                        const std::map<std::string, FloatArray>& inputs,
                                        const std::map<std::string, Drawn>& drawn) {
  std::map<std::string, cuda::UniformTensor> tensors;
  for (const auto& [role, given] : drawn) {
    const auto& [elements, key0, key1, bits, spacing] = given;
    tensors[role] = {elements, {key0, key1}, bits, spacing};
  }
  return std::make_shared<cuda::Arena>(shared_device(device), host_tensors(inputs),
                                       std::move(tensors));
}

cuda::CacheState cache_of(const std::string& name) {
  if (name == "hot") return cuda::CacheState::hot;
  if (name == "weights-cold") return cuda::CacheState::weights_cold;
  if (name == "all-cold") return cuda::CacheState::all_cold;
  throw py::value_error("cache " + name + ": no such state; there is: hot, weights-cold, all-cold");
}

std::shared_ptr<cuda::Kernel> make_kernel(std::shared_ptr<cuda::Plan> plan,
                                          std::shared_ptr<cuda::Arena> arena,
                                          const std::string& cache, const std::string& timing,
                                          std::size_t cold_bytes) {
  const auto state = cache_of(cache);
  const auto procedure = timing_of(timing);
  const py::gil_scoped_release release;
  return std::make_shared<cuda::Kernel>(std::move(plan), std::move(arena), state, procedure,
                                        cold_bytes);
}

template <typename Kernel>
py::dict sample(Kernel& kernel, int samples, int inner, int untimed) {
  cuda::SampleResult result;
  {
    const py::gil_scoped_release release;
    result = kernel.sample({samples, inner, untimed});
  }
  return chunk_of(std::move(result));
}

py::array_t<float> read(const cuda::Kernel& kernel, std::size_t tensor) {
  const auto& dims = kernel.plan().tensors().at(tensor).dims;
  py::array_t<float> array(std::vector<py::ssize_t>(dims.begin(), dims.end()));
  auto* data = array.mutable_data();
  const py::gil_scoped_release release;
  kernel.read(tensor, data);
  return array;
}

py::array_t<float> output(const cuda::Kernel& kernel) {
  if (kernel.outputs().empty()) {
    throw PrimitiveFailure(kernel.plan().facts().primitive, "writes no tensor");
  }
  return read(kernel, kernel.outputs().front());
}

py::dict outputs(const cuda::Kernel& kernel) {
  py::dict result;
  for (const auto tensor : kernel.outputs()) {
    result[py::str(kernel.plan().tensors()[tensor].role)] = read(kernel, tensor);
  }
  return result;
}

template <typename Kernel>
py::dict launch_times(Kernel& kernel, int repetitions) {
  cuda::LaunchTimes times;
  {
    const py::gil_scoped_release release;
    times = kernel.launch_times(repetitions);
  }
  py::dict result;
  result["single_s"] = times.single_s;
  result["event_s"] = times.event_s;
  result["graph_s"] = times.graph_s;
  result["host_s"] = times.host_s;
  result["wall_s"] = times.wall_s;
  return result;
}

template <typename Kernel>
py::dict run_for(Kernel& kernel, double seconds) {
  cuda::Load load;
  {
    const py::gil_scoped_release release;
    load = kernel.run_for(seconds);
  }
  py::dict result;
  result["executions"] = load.executions;
  result["seconds"] = load.seconds;
  return result;
}

template <typename Kernel>
py::list kernels(Kernel& kernel) {
  std::vector<cuda::GraphKernel> found;
  {
    const py::gil_scoped_release release;
    found = kernel.kernels();
  }
  py::list result;
  for (const auto& one : found) {
    py::dict facts;
    facts["name"] = one.name;
    facts["grid"] = one.grid;
    facts["block"] = one.block;
    facts["shared_bytes"] = one.shared_bytes;
    facts["registers"] = one.registers;
    result.append(facts);
  }
  return result;
}

// Calls a Python function with the stream's address, and acquires the GIL, which sampling released.
std::shared_ptr<cuda::ForeignKernel> make_enqueued(cuda::Device& device, py::function enqueue,
                                                   std::size_t launches, const std::string& cache) {
  // The last reference may be dropped without the GIL.
  const auto* function = new py::function(std::move(enqueue));
  const std::shared_ptr<const py::function> shared(function, [](const py::function* dropped) {
    const py::gil_scoped_acquire lock;
    delete dropped;
  });
  const auto call = [shared](CUstream_st* stream) {
    const py::gil_scoped_acquire lock;
    (*shared)(reinterpret_cast<std::uintptr_t>(stream));
  };
  return std::make_shared<cuda::ForeignKernel>(shared_device(device), call, launches,
                                               cache_of(cache));
}

std::shared_ptr<cuda::ForeignKernel> make_captured(cuda::Device& device, std::uintptr_t graph,
                                                   std::size_t executions) {
  return std::make_shared<cuda::ForeignKernel>(shared_device(device),
                                               reinterpret_cast<cudaGraph_t>(graph), executions);
}

py::dict verify(const cuda::Kernel& kernel, const cuda::Reference& reference, cuda::Arena& arena) {
  cuda::Comparison found;
  {
    const py::gil_scoped_release release;
    found = kernel.verify(reference, arena);
  }
  py::dict result;
  result["max_error"] = found.max_error;
  result["where"] = found.where;
  result["got"] = found.got;
  result["expected"] = found.expected;
  result["unwritten"] = found.unwritten;
  result["infinite"] = found.infinite;
  result["elements"] = found.elements;
  result["terms"] = found.terms;
  return result;
}

}  // namespace

void register_cuda_kernels(py::module_& m) {
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  m.def("push_range", &cuda::push_range, "name"_a);
  m.def("pop_range", &cuda::pop_range);
  py::class_<cuda::Arena, std::shared_ptr<cuda::Arena>>(m, "Arena")
      .def(py::init(&make_arena), "device"_a, "inputs"_a, "drawn"_a = py::dict())
      .def("clear", &cuda::Arena::clear, no_gil)
      .def_property_readonly("bytes", &cuda::Arena::bytes);

  py::class_<cuda::Kernel, std::shared_ptr<cuda::Kernel>>(m, "Kernel")
      .def(py::init(&make_kernel), "plan"_a, "arena"_a, "cache"_a = "hot", "timing"_a = "events",
           "cold_bytes"_a = 0)
      .def("sample", &sample<cuda::Kernel>, "samples"_a, "inner"_a = 1, "untimed"_a = 0)
      .def("run_poisoned", &cuda::Kernel::run_poisoned, no_gil)
      .def("output", &output)
      .def("outputs", &outputs)
      .def("launch_times", &launch_times<cuda::Kernel>, "repetitions"_a = 20)
      .def("run_for", &run_for<cuda::Kernel>, "seconds"_a)
      .def("kernels", &kernels<cuda::Kernel>)
      .def("run_marked", &cuda::Kernel::run_marked, "name"_a, no_gil)
      .def("verify", &verify, "reference"_a, "arena"_a)
      .def_property_readonly("build_seconds", &cuda::Kernel::build_seconds)
      .def_property_readonly("plan", &cuda::Kernel::shared_plan)
      .def_property_readonly("rotating_sets", &cuda::Kernel::rotating_sets);
  using Foreign = cuda::ForeignKernel;
  py::class_<Foreign, std::shared_ptr<Foreign>>(m, "ForeignKernel")
      .def(py::init(&make_enqueued), "device"_a, "enqueue"_a, "launches"_a = 1, "cache"_a = "hot")
      .def_static("of_graph", &make_captured, "device"_a, "graph"_a, "executions"_a = 1)
      .def("sample", &sample<Foreign>, "samples"_a, "inner"_a = 1, "untimed"_a = 0)
      .def("launch_times", &launch_times<Foreign>, "repetitions"_a = 20)
      .def("run_for", &run_for<Foreign>, "seconds"_a)
      .def("kernels", &kernels<Foreign>);
}

}  // namespace pydlbench
