// Every native exception arrives in Python as its counterpart in pydlbench.errors.
#include <pybind11/gil_safe_call_once.h>
#include <pybind11/pybind11.h>

#include <exception>
#include <oneapi/dnnl/dnnl.hpp>

#include "bind/registers.hpp"
#include "core/error.hpp"
#include "cpu/plans.hpp"

namespace py = pybind11;

namespace pydlbench {

namespace {

struct ErrorTypes {
  py::object unsupported, primitive, memory;
};

const ErrorTypes& error_types() {
  PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<ErrorTypes> storage;
  return storage
      .call_once_and_store_result([] {
        const auto errors = py::module_::import("pydlbench.errors");
        return ErrorTypes{errors.attr("UnsupportedError"), errors.attr("PrimitiveError"),
                          errors.attr("InsufficientMemoryError")};
      })
      .get_stored();
}

}  // namespace

void register_errors(py::module_&) {
  error_types();
  py::register_local_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const Unsupported& error) {
      py::set_error(error_types().unsupported, error.what());
    } catch (const PrimitiveFailure& error) {
      py::set_error(error_types().primitive, error.what());
    } catch (const OutOfMemory& error) {
      py::set_error(error_types().memory, error.what());
    } catch (const dnnl::error& error) {
      // Where no primitive is at work: a conversion, a descriptor.
      py::set_error(error_types().primitive, ("oneDNN: " + cpu::describe(error)).c_str());
    }
  });
}

}  // namespace pydlbench
