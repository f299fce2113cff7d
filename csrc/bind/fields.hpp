// From Python's dictionary of a layer's fields to those of a native problem.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/fields.hpp"

namespace pydlbench {

// Throws std::invalid_argument, which names the field, where a value is of no type that any has.
inline Fields fields_of(const std::string& kind, const pybind11::dict& given) {
  namespace py = pybind11;
  std::map<std::string, Fields::Value> values;
  for (const auto& [key, value] : given) {
    const auto name = key.cast<std::string>();
    // None would be false.
    py::detail::make_caster<Fields::Value> caster;
    if (value.is_none() || !caster.load(value, true)) {
      throw std::invalid_argument(kind + ": the field " + name + " is " +
                                  py::repr(value).cast<std::string>());
    }
    values[name] = py::detail::cast_op<Fields::Value>(std::move(caster));
  }
  return Fields(kind, std::move(values));
}

}  // namespace pydlbench
