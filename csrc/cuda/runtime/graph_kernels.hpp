// The kernels of a captured graph, from the driver.
#pragma once

#include <cuda.h>

#include <array>
#include <cstddef>
#include <string>
#include <vector>

namespace pydlbench::cuda {

struct GraphKernel {
  std::string name;  // demangled
  std::array<unsigned, 3> grid, block;
  std::size_t shared_bytes;  // per block: static and dynamic
  int registers;             // of a thread
};

// cuFuncGetName, which cuda.h declares since CUDA 12.3 only.
using FuncGetName = CUresult (*)(const char** name, CUfunction function);

// The driver's functions, which are looked up at run time: see graph_driver().
struct GraphDriver {
  decltype(&cuGraphGetNodes) nodes;
  decltype(&cuGraphNodeGetType) type;
  decltype(&cuGraphKernelNodeGetParams) parameters;
  decltype(&cuGraphChildGraphNodeGetGraph) child;
  decltype(&cuKernelGetFunction) function;
  FuncGetName name;
  decltype(&cuFuncGetAttribute) attribute;
};

// The functions of the installed driver; null if it lacks one of them (before CUDA 12.3).
const GraphDriver* graph_driver();

// The kernels in the order of the graph's nodes, including child graphs, without copies and fills.
// Throws PrimitiveFailure if the driver reports an error.
std::vector<GraphKernel> graph_kernels(const GraphDriver& driver, CUgraph graph);

}  // namespace pydlbench::cuda
