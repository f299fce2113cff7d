#include "cuda/runtime/graph_kernels.hpp"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>

#include "core/error.hpp"

namespace pydlbench::cuda {

namespace {

void check(CUresult result, const char* function) {
  if (result == CUDA_SUCCESS) return;
  throw PrimitiveFailure(function, "CUresult " + std::to_string(static_cast<int>(result)));
}

std::string demangled(const char* name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> plain(
      abi::__cxa_demangle(name, nullptr, nullptr, &status), &std::free);
  return status == 0 ? plain.get() : name;
}

GraphKernel kernel_of(const GraphDriver& driver, CUgraphNode node) {
  CUDA_KERNEL_NODE_PARAMS launch{};
  check(driver.parameters(node, &launch), "cuGraphKernelNodeGetParams");
  CUfunction function = launch.func;
  if (function == nullptr) {
    check(driver.function(&function, launch.kern), "cuKernelGetFunction");
  }
  const char* name = nullptr;
  check(driver.name(&name, function), "cuFuncGetName");
  const auto attribute = [&](CUfunction_attribute which) {
    int value = 0;
    check(driver.attribute(&value, which, function), "cuFuncGetAttribute");
    return value;
  };
  const auto fixed = static_cast<std::size_t>(attribute(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES));
  return {demangled(name),
          {launch.gridDimX, launch.gridDimY, launch.gridDimZ},
          {launch.blockDimX, launch.blockDimY, launch.blockDimZ},
          fixed + launch.sharedMemBytes,
          attribute(CU_FUNC_ATTRIBUTE_NUM_REGS)};
}

}  // namespace

std::vector<GraphKernel> graph_kernels(const GraphDriver& driver, CUgraph graph) {
  std::size_t count = 0;
  check(driver.nodes(graph, nullptr, &count), "cuGraphGetNodes");
  std::vector<CUgraphNode> nodes(count);
  check(driver.nodes(graph, nodes.data(), &count), "cuGraphGetNodes");
  std::vector<GraphKernel> found;
  for (auto* const node : nodes) {
    CUgraphNodeType type{};
    check(driver.type(node, &type), "cuGraphNodeGetType");
    if (type == CU_GRAPH_NODE_TYPE_KERNEL) {
      found.push_back(kernel_of(driver, node));
    } else if (type == CU_GRAPH_NODE_TYPE_GRAPH) {
      CUgraph child = nullptr;
      check(driver.child(node, &child), "cuGraphChildGraphNodeGetGraph");
      for (auto& kernel : graph_kernels(driver, child)) found.push_back(std::move(kernel));
    }
  }
  return found;
}

}  // namespace pydlbench::cuda
