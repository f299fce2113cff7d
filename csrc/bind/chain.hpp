// What the chains of both modules have in common on their way between Python and C++.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "bind/arrays.hpp"
#include "bind/fields.hpp"
#include "core/chain.hpp"

namespace pydlbench {

using Names = std::map<std::string, std::string>;

// The class Link of a module whose passes are of type `Word`.
template <typename Word, typename PassOf>
void register_link(pybind11::module_& m, PassOf pass_of) {
  using namespace pybind11::literals;
  // The other module has a class of the same type.
  pybind11::class_<Link>(m, "Link", pybind11::module_local())
      .def(pybind11::init([pass_of](std::string name, std::string problem, const std::string& kind,
                                    const pybind11::dict& fields, const Word& pass, Names reads,
                                    Names writes, std::string workspace, std::string choice) {
             return Link{std::move(name),      std::move(problem), fields_of(kind, fields),
                         pass_of(pass),        std::move(reads),   std::move(writes),
                         std::move(workspace), std::move(choice)};
           }),
           "name"_a, "problem"_a, "kind"_a, "fields"_a, "pass_"_a, "reads"_a, "writes"_a,
           "workspace"_a = "", "choice"_a = "")
      .def_readonly("name", &Link::name);
}

template <typename Chain>
pybind11::array_t<double> step_seconds(Chain& chain) {
  std::vector<double> seconds;
  {
    const pybind11::gil_scoped_release release;
    seconds = chain.step_seconds();
  }
  return array_of(std::move(seconds));
}

inline pybind11::dict dict_of(const ChainMemory& memory) {
  pybind11::dict found;
  found["kept"] = memory.kept;
  found["shared"] = memory.shared;
  found["unshared"] = memory.unshared;
  found["scratch"] = memory.scratch;
  return found;
}

}  // namespace pydlbench
