// Loading of cuDNN and cuBLASLt. pydlbench is not linked to them and can be imported without them;
// results contain the file that was loaded.
#pragma once

#include <optional>
#include <string>

namespace pydlbench::cuda {

struct LoadedLibrary {
  std::string path;     // the file, symbolic links resolved
  std::string version;  // as reported by the library: "9.28.0"
};

// Opens cuDNN 9 (`path`, or the file that the loader finds). A second call does nothing. Throws
// Unsupported with the files that were tried and the errors.
void load_cudnn(const std::optional<std::string>& path);

// Opens cuBLASLt as load_cudnn() opens cuDNN, in the major version that this module was built for.
void load_cublaslt(const std::optional<std::string>& path);

// Nothing if the library is not loaded.
const std::optional<LoadedLibrary>& loaded_cudnn();
const std::optional<LoadedLibrary>& loaded_cublaslt();

// A function of a library; throws Unsupported if this version does not have it, or if the library
// is not loaded.
void* cudnn_symbol(const char* name);
void* cublaslt_symbol(const char* name);

// "cuDNN 9.28.0", "cuBLASLt 13.10.0"; throw Unsupported if the library is not loaded.
std::string cudnn_version_text();
std::string cublaslt_version_text();

}  // namespace pydlbench::cuda
