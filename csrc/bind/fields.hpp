// Conversion of a layer's fields from a Python dictionary.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <map>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/fields.hpp"

namespace pydlbench {

// Throws std::invalid_argument with the field's name for a value of an unsupported type.
inline Fields fields_of(const std::string& kind, const pybind11::dict& given) {
  namespace py = pybind11;
  std::map<std::string, Fields::Value> values;
  for (const auto& [key, value] : given) {
    const auto name = key.cast<std::string>();
    // pybind11 would convert None to false.
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
