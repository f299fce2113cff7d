#include <cublas_api.h>
#include <dlfcn.h>
#include <link.h>

#include <climits>
#include <cstdlib>
#include <mutex>
#include <vector>

#include "core/error.hpp"
#include "cuda/libraries.hpp"

namespace pydlbench::cuda {

namespace {

struct Library {
  const char* name;
  const char* version_function;  // size_t f(void), 10000 x major + 100 x minor + patch
  int major;                     // the version of the headers
  std::vector<std::string> sonames;
  std::string refused = std::string(name) + " is not loaded";  // the reason for a missing handle
  void* handle = nullptr;
  std::optional<LoadedLibrary> loaded = std::nullopt;
};

// Never destroyed, because plans may call the library until the process ends.
Library& cudnn() {
  static auto& library = *new Library{"cuDNN", "cudnnGetVersion", 9, {"libcudnn.so.9"}};
  return library;
}

Library& cublaslt() {
  static auto& library = *new Library{"cuBLASLt",
                                      "cublasLtGetVersion",
                                      CUBLAS_VER_MAJOR,
                                      {"libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR)}};
  return library;
}

std::string real_path(void* handle, const std::string& asked) {
  link_map* map = nullptr;
  if (dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) return asked;
  char resolved[PATH_MAX];
  return realpath(map->l_name, resolved) != nullptr ? resolved : map->l_name;
}

std::string dotted(std::size_t version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

// Loads a library; returns the error, or an empty string.
std::string open(Library& library, const std::string& path) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = dlerror();
    return why != nullptr ? why : path + ": cannot be loaded";
  }
  void* function = dlsym(handle, library.version_function);
  if (function == nullptr) {
    dlclose(handle);
    return path + ": has no " + library.version_function;
  }
  const std::size_t version = reinterpret_cast<std::size_t (*)()>(function)();
  // cuDNN 8 and older use 1000 x major, which gives 0 here.
  if (version / 10000 != static_cast<std::size_t>(library.major)) {
    dlclose(handle);
    return path + ": is version " + (version >= 10000 ? dotted(version) : std::to_string(version)) +
           ", but " + std::to_string(library.major) + " is needed";
  }
  library.handle = handle;
  library.loaded = LoadedLibrary{real_path(handle, path), dotted(version)};
  return "";
}

void load(Library& library, const std::optional<std::string>& path) {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  if (library.handle != nullptr) return;
  std::string tried;
  for (const auto& name : path ? std::vector<std::string>{*path} : library.sonames) {
    const auto why = open(library, name);
    if (why.empty()) return;
    tried += (tried.empty() ? "" : "; ") + why;
  }
  library.refused = std::string(library.name) + " cannot be loaded: " + tried;
  throw Unsupported(library.refused);
}

void* handle_of(const Library& library) {
  if (library.handle == nullptr) throw Unsupported(library.refused);
  return library.handle;
}

std::string version_text(const Library& library) {
  handle_of(library);
  return std::string(library.name) + " " + library.loaded->version;
}

void* symbol(const Library& library, const char* name) {
  void* found = dlsym(handle_of(library), name);
  if (found == nullptr) throw Unsupported(version_text(library) + " has no " + name);
  return found;
}

}  // namespace

void load_cudnn(const std::optional<std::string>& path) { load(cudnn(), path); }
void load_cublaslt(const std::optional<std::string>& path) { load(cublaslt(), path); }
const std::optional<LoadedLibrary>& loaded_cudnn() { return cudnn().loaded; }
const std::optional<LoadedLibrary>& loaded_cublaslt() { return cublaslt().loaded; }
void* cudnn_symbol(const char* name) { return symbol(cudnn(), name); }
void* cublaslt_symbol(const char* name) { return symbol(cublaslt(), name); }
std::string cudnn_version_text() { return version_text(cudnn()); }
std::string cublaslt_version_text() { return version_text(cublaslt()); }

}  // namespace pydlbench::cuda
