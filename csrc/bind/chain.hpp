// What the chains of both modules have in common on their way between Python and C++.
#pragma once

#include <pybind11/pybind11.h>

#include <map>
#include <string>
#include <utility>

#include "bind/fields.hpp"
#include "core/chain.hpp"

namespace pydlbench {

using Names = std::map<std::string, std::string>;

inline Link make_link(std::string name, std::string problem, const std::string& kind,
                      const pybind11::dict& fields, Pass pass, Names reads, Names writes,
                      std::string workspace, std::string choice) {
  return {std::move(name),  std::move(problem), fields_of(kind, fields), pass,
          std::move(reads), std::move(writes),  std::move(workspace),    std::move(choice)};
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
