// cuDNN and cuBLASLt, opened when they are first wanted: pydlbench is built without linking to
// them, imports without them, and reports which copy it runs on.
#pragma once

#include <optional>
#include <string>

namespace pydlbench::cuda {

struct LoadedLibrary {
  std::string path;     // the file, symbolic links resolved
  std::string version;  // as reported by the library: "9.28.0"
};

// Opens cuDNN 9 (`path`, or without one whatever the loader finds). Opened libraries stay: a second
// call does nothing. Throws Unsupported naming what was tried and why it failed.
void load_cudnn(const std::optional<std::string>& path);

// The same for cuBLASLt, of the major version that this module was built for.
void load_cublaslt(const std::optional<std::string>& path);

// Nothing where the library is not loaded.
const std::optional<LoadedLibrary>& loaded_cudnn();
const std::optional<LoadedLibrary>& loaded_cublaslt();

// A function of a library; throws Unsupported naming the function and the version that lacks it, or
// why the library is not loaded.
void* cudnn_symbol(const char* name);
void* cublaslt_symbol(const char* name);

// "cuDNN 9.28.0", "cuBLASLt 13.10.0"; throw Unsupported where the library is not loaded.
std::string cudnn_version_text();
std::string cublaslt_version_text();

}  // namespace pydlbench::cuda
