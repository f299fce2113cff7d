// The libraries that are opened at run time: which copies, which versions.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>

#include "bind/cuda_registers.hpp"
#include "cuda/libraries/loader.hpp"

namespace py = pybind11;

namespace pydlbench {
namespace {

void add(py::dict& libraries, const char* name, const std::optional<cuda::LoadedLibrary>& library) {
  if (!library) return;
  py::dict facts;
  facts["version"] = library->version;
  facts["path"] = library->path;
  libraries[name] = facts;
}

}  // namespace

void register_cuda_libraries(py::module_& m) {
  m.def(
      "load_libraries",
      [](const std::optional<std::string>& cudnn, const std::optional<std::string>& cublaslt) {
        cuda::load_cudnn(cudnn);
        cuda::load_cublaslt(cublaslt);
      },
      py::arg("cudnn") = py::none(), py::arg("cublaslt") = py::none(),
      "Open cuDNN and cuBLASLt: the given files, or what the loader finds.");
  m.def(
      "libraries",
      [] {
        py::dict libraries;
        add(libraries, "cudnn", cuda::loaded_cudnn());
        add(libraries, "cublaslt", cuda::loaded_cublaslt());
        return libraries;
      },
      "The libraries that are loaded: version and file.");
}

}  // namespace pydlbench
