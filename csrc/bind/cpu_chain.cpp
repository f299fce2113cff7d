// Chains: the kernels of a whole step.
#include <pybind11/native_enum.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "bind/arrays.hpp"
#include "bind/chunk.hpp"
#include "bind/fields.hpp"
#include "cpu/chain/chain.hpp"
#include "cpu/plans.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace pydlbench {

namespace {

std::unique_ptr<cpu::Chain> make_chain(const std::vector<Link>& links,
                                       const std::map<std::string, FloatArray>& given,
                                       const std::set<std::string>& kept, Precision precision,
                                       cpu::Layouts layouts, cpu::Choices& choices,
                                       std::vector<int> cpus) {
  auto tensors = host_tensors(given);
  const py::gil_scoped_release release;
  return std::make_unique<cpu::Chain>(links, std::move(tensors), kept, precision, layouts, choices,
                                      std::move(cpus));
}

using Names = std::map<std::string, std::string>;

Link make_link(std::string name, std::string problem, const std::string& kind,
               const py::dict& fields, Pass pass, Names reads, Names writes, std::string workspace,
               std::string choice) {
  return {std::move(name),  std::move(problem), fields_of(kind, fields), pass,
          std::move(reads), std::move(writes),  std::move(workspace),    std::move(choice)};
}

py::array_t<double> step_seconds(cpu::Chain& chain) {
  std::vector<double> seconds;
  {
    const py::gil_scoped_release release;
    seconds = chain.step_seconds();
  }
  return array_of(std::move(seconds));
}

py::dict memory(const cpu::Chain& chain) {
  const auto& sizes = chain.memory();
  py::dict found;
  found["kept"] = sizes.kept;
  found["shared"] = sizes.shared;
  found["unshared"] = sizes.unshared;
  found["scratch"] = sizes.scratch;
  return found;
}

// One letter per dimension: roles are not known here.
std::string layout_of(const dnnl::memory::desc& desc) {
  const auto count = static_cast<std::size_t>(desc.get_ndims());
  return cpu::format_name(desc, std::string("abcdefghijkl").substr(0, count));
}

py::list steps(const cpu::Chain& chain) {
  py::list found;
  for (const auto& step : chain.steps()) {
    py::dict one;
    one["name"] = step.name;
    one["tensor"] = step.tensor;
    if (step.is_reorder) {
      one["algorithm"] = "reorder";
      one["layout"] = layout_of(step.views[0].desc) + " to " + layout_of(step.views[1].desc);
      one["bytes"] = step.views[0].desc.get_size() + step.views[1].desc.get_size();
    } else {
      one["algorithm"] = step.candidate.implementation;
      one["layout"] = step.candidate.layout;
      one["bytes"] = 0;
    }
    found.append(one);
  }
  return found;
}

py::list loads(const cpu::Chain& chain) {
  py::list found;
  for (const auto& load : chain.loads()) {
    py::dict one;
    one["tensor"] = load.tensor;
    one["layout"] = layout_of(load.view.desc);
    one["bytes"] = load.view.desc.get_size();
    one["plain"] = load.is_plain;
    found.append(one);
  }
  return found;
}

py::array_t<float> tensor(const cpu::Chain& chain, const std::string& name) {
  cpu::Tensor plain;
  {
    const py::gil_scoped_release release;
    plain = chain.tensor(name);
  }
  const auto bytes = plain.memory.get_desc().get_size();
  py::array_t<float> found(static_cast<py::ssize_t>(bytes / sizeof(float)));
  std::memcpy(found.mutable_data(), plain.memory.get_data_handle(), bytes);
  return found;
}

}  // namespace

void register_cpu_chain(py::module_& m) {
  py::native_enum<cpu::Layouts>(m, "Layouts", "enum.Enum", "How convolutions' tensors lie.")
      .value("channels_last", cpu::Layouts::channels_last)
      .value("blocked", cpu::Layouts::blocked)
      .value("chosen", cpu::Layouts::chosen)
      .finalize();

  py::class_<Link>(m, "Link")
      .def(py::init(&make_link), "name"_a, "problem"_a, "kind"_a, "fields"_a, "pass_"_a, "reads"_a,
           "writes"_a, "workspace"_a = "", "choice"_a = "")
      .def_readonly("name", &Link::name);

  py::class_<cpu::Choices>(m, "Choices", "What chains have found out about problems.")
      .def(py::init());

  py::class_<cpu::Chain>(m, "Chain")
      .def(py::init(&make_chain), "links"_a, "given"_a, "kept"_a, "precision"_a, "layouts"_a,
           "choices"_a, "cpus"_a = std::vector<int>{})
      .def("load", &cpu::Chain::load, py::call_guard<py::gil_scoped_release>())
      .def("run", &cpu::Chain::run, py::call_guard<py::gil_scoped_release>())
      .def("sample", &sample<cpu::Chain>, "samples"_a, "inner"_a = 1, "untimed"_a = 0,
           "bursts"_a = false)
      .def("step_seconds", &step_seconds)
      .def("tensor", &tensor, "name"_a)
      .def_property_readonly("steps", &steps)
      .def_property_readonly("loads", &loads)
      .def_property_readonly("memory", &memory);
}

}  // namespace pydlbench
