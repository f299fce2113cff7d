#include <cuda_runtime_api.h>

#include <optional>

#include "cuda/runtime/graph_kernels.hpp"

namespace pydlbench::cuda {

namespace {

// The version of the declarations in cuda.h; before CUDA 12 cuGraphKernelNodeGetParams differs.
constexpr unsigned kVersion = 12030;

template <typename Function>
bool look_up(Function& function, const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult status{};
#if CUDART_VERSION >= 12050
  const auto code =
      cudaGetDriverEntryPointByVersion(name, &found, kVersion, cudaEnableDefault, &status);
#else
  const auto code = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &status);
#endif
  static_cast<void>(kVersion);
  if (code != cudaSuccess || status != cudaDriverEntryPointSuccess || found == nullptr) {
    static_cast<void>(cudaGetLastError());
    return false;
  }
  function = reinterpret_cast<Function>(found);
  return true;
}

std::optional<GraphDriver> looked_up() {
  GraphDriver driver{};
  const bool whole =
      look_up(driver.nodes, "cuGraphGetNodes") && look_up(driver.type, "cuGraphNodeGetType") &&
      look_up(driver.parameters, "cuGraphKernelNodeGetParams") &&
      look_up(driver.child, "cuGraphChildGraphNodeGetGraph") &&
      look_up(driver.function, "cuKernelGetFunction") && look_up(driver.name, "cuFuncGetName") &&
      look_up(driver.attribute, "cuFuncGetAttribute");
  return whole ? std::optional<GraphDriver>(driver) : std::nullopt;
}

}  // namespace

const GraphDriver* graph_driver() {
  static const auto driver = looked_up();
  return driver ? &*driver : nullptr;
}

}  // namespace pydlbench::cuda
