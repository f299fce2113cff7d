// Chains on a GPU: the kernels of a whole step.
#include <pybind11/native_enum.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "bind/arrays.hpp"
#include "bind/chain.hpp"
#include "bind/cuda_objects.hpp"
#include "cuda/arena.hpp"
#include "cuda/chain/chain.hpp"
#include "cuda/chain/offers.hpp"
#include "cuda/mode.hpp"

namespace py = pybind11;
using namespace py::literals;

namespace pydlbench {

namespace {

std::unique_ptr<cuda::DeviceOffers> make_offers(cuda::Device& device, const std::string& mode,
                                                std::size_t workspace_limit) {
  auto shared = shared_device(device);
  const py::gil_scoped_release release;
  return std::make_unique<cuda::DeviceOffers>(std::move(shared), cuda::mode_of(mode),
                                              workspace_limit);
}

std::unique_ptr<cuda::Chain> make_chain(cuda::DeviceOffers& offers, const std::vector<Link>& links,
                                        const std::map<std::string, FloatArray>& given,
                                        const std::set<std::string>& kept, cuda::Layouts layouts) {
  auto tensors = host_tensors(given);
  const py::gil_scoped_release release;
  return std::make_unique<cuda::Chain>(offers, links, tensors, kept, layouts);
}

py::dict sample(cuda::Chain& chain, int samples, int inner, int untimed, bool graph) {
  cuda::SampleResult result;
  {
    const py::gil_scoped_release release;
    result =
        chain.sample({samples, inner, untimed}, graph ? cuda::Timing::graph : cuda::Timing::events);
  }
  return chunk_of(std::move(result));
}

py::list steps(const cuda::Chain& chain) {
  py::list found;
  for (const auto& step : chain.steps()) {
    py::dict one;
    one["name"] = step.name;
    one["tensor"] = step.tensor;
    if (step.plan) {
      one["algorithm"] = step.plan->facts().algorithm;
      one["layout"] = step.plan->facts().layout;
      one["bytes"] = 0;
    } else {
      const auto &from = step.tensors[0].spec, &to = step.tensors[1].spec;
      one["algorithm"] = "reorder";
      one["layout"] = cuda::order_text(from) + " to " + cuda::order_text(to);
      one["bytes"] = from.bytes() + to.bytes();
    }
    found.append(one);
  }
  return found;
}

py::list loads(const cuda::Chain& chain) {
  py::list found;
  for (const auto& [tensor, placed] : chain.loads()) {
    const auto& spec = placed.spec;
    py::dict one;
    one["tensor"] = tensor;
    one["layout"] = cuda::order_text(spec);
    one["bytes"] = spec.bytes();
    one["plain"] = cuda::is_plain(spec);
    found.append(one);
  }
  return found;
}

py::array_t<float> tensor(const cuda::Chain& chain, const std::string& name) {
  std::vector<float> dense;
  {
    const py::gil_scoped_release release;
    dense = chain.tensor(name);
  }
  return array_of(std::move(dense));
}

}  // namespace

void register_cuda_chain(py::module_& m) {
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  py::native_enum<cuda::Layouts>(m, "Layouts", "enum.Enum", "How convolutions' tensors lie.")
      .value("channels_last", cuda::Layouts::channels_last)
      .value("channels_first", cuda::Layouts::channels_first)
      .value("chosen", cuda::Layouts::chosen)
      .finalize();

  register_link<std::string>(m, cuda::pass_of);

  py::class_<cuda::DeviceOffers>(m, "Offers", "Plans for chains, and what is known of them.")
      .def(py::init(&make_offers), "device"_a, "mode"_a, "workspace_limit"_a);

  py::class_<cuda::Chain>(m, "Chain")
      .def(py::init(&make_chain), "offers"_a, "links"_a, "given"_a, "kept"_a, "layouts"_a)
      .def("load", &cuda::Chain::load, no_gil)
      .def("run", &cuda::Chain::run, no_gil)
      .def("sample", &sample, "samples"_a, "inner"_a = 1, "untimed"_a = 0, py::kw_only(),
           "graph"_a = false)
      .def("step_seconds", &step_seconds<cuda::Chain>)
      .def("tensor", &tensor, "name"_a)
      .def_property_readonly("gated", &cuda::Chain::is_gated)
      .def_property_readonly("steps", &steps)
      .def_property_readonly("loads", &loads)
      .def_property_readonly("memory",
                             [](const cuda::Chain& chain) { return dict_of(chain.memory()); });
}

}  // namespace pydlbench
