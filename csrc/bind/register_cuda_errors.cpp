// Every exception of the CUDA module arrives in Python as its counterpart in pydlbench.errors.
#include <pybind11/gil_safe_call_once.h>
#include <pybind11/pybind11.h>

#include <exception>

#include "bind/cuda_registers.hpp"
#include "core/error.hpp"
#include "cuda/runtime/check.hpp"

namespace py = pybind11;

namespace pydlbench {

namespace {

struct ErrorTypes {
  py::object unsupported, primitive, memory, lost;
};

const ErrorTypes& error_types() {
  PYBIND11_CONSTINIT static py::gil_safe_call_once_and_store<ErrorTypes> storage;
  return storage
      .call_once_and_store_result([] {
        const auto errors = py::module_::import("pydlbench.errors");
        return ErrorTypes{errors.attr("UnsupportedError"), errors.attr("PrimitiveError"),
                          errors.attr("InsufficientMemoryError"), errors.attr("DeviceLostError")};
      })
      .get_stored();
}

}  // namespace

void register_cuda_errors(py::module_&) {
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
    } catch (const cuda::DeviceLost& error) {
      py::set_error(error_types().lost, error.what());
    }
  });
}

}  // namespace pydlbench
