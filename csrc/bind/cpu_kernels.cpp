// Bindings of arenas and kernels.
#include <pybind11/native_enum.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "bind/arrays.hpp"
#include "bind/chunk.hpp"
#include "cpu/arena.hpp"
#include "cpu/kernel.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace pydlbench {

namespace {

std::shared_ptr<cpu::Arena> make_arena(const std::map<std::string, FloatArray>& inputs) {
  return std::make_shared<cpu::Arena>(host_tensors(inputs));
}

// A NumPy view of a dense or strided tensor of float32 or int32, its axes in the order of the
// caller's dense array.
py::array view(const cpu::Tensor& tensor, const dnnl::memory::desc& plain) {
  const auto desc = tensor.memory.get_desc();
  const auto dims = desc.get_dims();
  const auto strides = desc.get_strides();
  const auto order_by = plain.get_strides();
  std::vector<std::size_t> order(dims.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  // Of two equal strides, one is of an axis of size 1, which is the inner one in a dense array.
  std::stable_sort(order.begin(), order.end(), [&](std::size_t left, std::size_t right) {
    if (order_by[left] != order_by[right]) return order_by[left] > order_by[right];
    return dims[left] > dims[right];
  });
  std::vector<py::ssize_t> shape, byte_strides;
  for (const auto axis : order) {
    shape.push_back(static_cast<py::ssize_t>(dims[axis]));
    byte_strides.push_back(static_cast<py::ssize_t>(strides[axis]) *
                           static_cast<py::ssize_t>(sizeof(float)));
  }
  auto* holder = new std::shared_ptr<cpu::Buffer>(tensor.buffer);
  const py::capsule owner(holder,
                          [](void* p) { delete static_cast<std::shared_ptr<cpu::Buffer>*>(p); });
  const bool integers = desc.get_data_type() == dnnl::memory::data_type::s32;
  return py::array(integers ? py::dtype::of<std::int32_t>() : py::dtype::of<float>(), shape,
                   byte_strides, tensor.memory.get_data_handle(), owner);
}

bool viewable(const dnnl::memory::desc& desc) {
  const auto type = desc.get_data_type();
  return (type == dnnl::memory::data_type::f32 || type == dnnl::memory::data_type::s32) &&
         desc.get_format_kind() == dnnl::memory::format_kind::blocked &&
         desc.get_inner_nblks() == 0;
}

// Returns an output without a copy if NumPy can express its layout, else a dense copy.
py::array output_array(const cpu::Kernel& kernel, std::size_t index) {
  const auto& argument = kernel.candidate().run.arguments[index];
  if (viewable(argument.desc)) return view(kernel.output(index), argument.plain);
  cpu::Tensor plain;
  {
    const py::gil_scoped_release release;
    plain = kernel.plain_output(index);
  }
  return view(plain, argument.plain);
}

py::array output(const cpu::Kernel& kernel) { return output_array(kernel, kernel.outputs().at(0)); }

py::dict outputs(const cpu::Kernel& kernel) {
  py::dict result;
  for (const auto index : kernel.outputs()) {
    result[py::str(kernel.candidate().run.arguments[index].role)] = output_array(kernel, index);
  }
  return result;
}

bool output_is_view(const cpu::Kernel& kernel) {
  return viewable(kernel.output(kernel.outputs().at(0)).memory.get_desc());
}

}  // namespace

void register_cpu_kernels(py::module_& m) {
  py::native_enum<cpu::CacheState>(m, "CacheState", "enum.Enum",
                                   "Tensors that are in the cache when a sample starts.")
      .value("hot", cpu::CacheState::hot)
      .value("weights_cold", cpu::CacheState::weights_cold)
      .value("all_cold", cpu::CacheState::all_cold)
      .finalize();

  py::class_<cpu::Arena, std::shared_ptr<cpu::Arena>>(m, "Arena")
      .def(py::init(&make_arena), "inputs"_a)
      .def("clear", &cpu::Arena::clear)
      .def_property_readonly("bytes", &cpu::Arena::bytes);

  py::class_<cpu::Kernel>(m, "Kernel")
      .def(py::init<cpu::Candidate, std::shared_ptr<cpu::Arena>, cpu::CacheState, std::size_t,
                    std::vector<int>>(),
           "candidate"_a, "arena"_a, "cache"_a = cpu::CacheState::hot, "cold_bytes"_a = 0,
           "cpus"_a = std::vector<int>{}, py::call_guard<py::gil_scoped_release>())
      .def("sample", &sample<cpu::Kernel>, "samples"_a, "inner"_a = 1, "untimed"_a = 0,
           "bursts"_a = false)
      .def("touch", &cpu::Kernel::touch, py::call_guard<py::gil_scoped_release>())
      .def("run_poisoned", &cpu::Kernel::run_poisoned, py::call_guard<py::gil_scoped_release>())
      .def("output", &output)
      .def("outputs", &outputs)
      .def_property_readonly("output_is_view", &output_is_view)
      .def_property_readonly("candidate", &cpu::Kernel::candidate)
      .def("reorder_seconds", &cpu::Kernel::reorder_seconds,
           py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("setup_seconds", &cpu::Kernel::setup_seconds)
      .def_property_readonly("rotating_sets", &cpu::Kernel::rotating_sets);
}

}  // namespace pydlbench
