// Translation of native exceptions to exceptions of pydlbench.errors.
#pragma once

#include <pybind11/gil_safe_call_once.h>
#include <pybind11/pybind11.h>

#include <exception>

#include "core/error.hpp"

namespace pydlbench {

struct ErrorTypes {
  pybind11::object unsupported, primitive, memory, device_lost;
};

inline const ErrorTypes& error_types() {
  PYBIND11_CONSTINIT static pybind11::gil_safe_call_once_and_store<ErrorTypes> storage;
  return storage
      .call_once_and_store_result([] {
        const auto errors = pybind11::module_::import("pydlbench.errors");
        return ErrorTypes{errors.attr("UnsupportedError"), errors.attr("PrimitiveError"),
                          errors.attr("InsufficientMemoryError"), errors.attr("DeviceLostError")};
      })
      .get_stored();
}

// Translates the exceptions of core/error.hpp. A module registers translators of its other
// exceptions afterwards: translators run from the last registered one to the first.
inline void register_errors() {
  error_types();  // imported now, not while an exception is handled
  pybind11::register_local_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const Unsupported& error) {
      pybind11::set_error(error_types().unsupported, error.what());
    } catch (const PrimitiveFailure& error) {
      pybind11::set_error(error_types().primitive, error.what());
    } catch (const OutOfMemory& error) {
      pybind11::set_error(error_types().memory, error.what());
    }
  });
}

}  // namespace pydlbench
